use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::NativeError;

/// As text that any process can read.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with names for keys can be written")
}

/// As Python's own dictionaries, lists and numbers.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (to_json(value),))
}

/// What `to_json` wrote, called `name` where it turns out to be something else.
pub(crate) fn from_json<T: DeserializeOwned>(
    name: &'static str,
    text: &str,
    accepted: &'static str,
) -> Result<T, NativeError> {
    serde_json::from_str(text).map_err(|reason| NativeError::Json { name, reason, accepted })
}
