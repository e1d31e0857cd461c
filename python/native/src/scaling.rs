use std::sync::{Arc, Mutex, PoisonError};

use pollux_model::LearningRateRule;
use pyo3::prelude::*;

use crate::error::NativeError;

/// What a learning-rate rule may look at.
#[pyclass(frozen, get_all, module = "pollux")]
pub(crate) struct ScalingContext {
    /// The batch against the one the user's learning rate was chosen for.
    scale: f64,
    /// Squared norm of the gradient, once measured.
    noise_sqr: Option<f64>,
    /// Variance of a baseline batch's gradient, once measured.
    noise_var: Option<f64>,
    /// Epochs done, counted in progress.
    epochs: f64,
}

impl From<&pollux_model::ScalingContext> for ScalingContext {
    fn from(context: &pollux_model::ScalingContext) -> Self {
        let pollux_model::ScalingContext { scale, noise, epochs } = *context;
        Self { scale, noise_sqr: noise.map(|noise| noise.sqr()), noise_var: noise.map(|noise| noise.var()), epochs }
    }
}

/// A rule by its name, or the user's own.
#[derive(FromPyObject)]
pub(crate) enum Scaling {
    Named(String),
    Callable(Py<PyAny>),
}

/// What the user's own rule raised when it was last asked. The model knows numbers only.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn keep(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The exception, which is then forgotten.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Scaling {
    /// The rule, which leaves what it raises in `raised`.
    pub(crate) fn into_rule(self, warmup_epochs: f64, raised: &Raised) -> Result<LearningRateRule, NativeError> {
        let accepted = "adascale, adamscale, linear, sqrt, legw, or a function";
        let refused = |value| Err(NativeError::Word { name: "scaling", value, accepted });
        let name = match self {
            Self::Named(name) => name,
            Self::Callable(callable) if Python::attach(|py| callable.bind(py).is_callable()) => {
                return Ok(custom(callable, raised.clone()));
            }
            Self::Callable(other) => return refused(other.to_string()),
        };
        match name.as_str() {
            "adascale" => Ok(LearningRateRule::AdaScale),
            "adamscale" => Ok(LearningRateRule::AdamScale),
            "linear" => Ok(LearningRateRule::Linear),
            "sqrt" => Ok(LearningRateRule::SquareRoot),
            "legw" => Ok(LearningRateRule::Legw { warmup_epochs }),
            _ => refused(name),
        }
    }
}

fn custom(callable: Py<PyAny>, raised: Raised) -> LearningRateRule {
    LearningRateRule::custom(move |context| {
        let asked = Python::attach(|py| callable.call1(py, (ScalingContext::from(context),))?.extract(py));
        asked.unwrap_or_else(|error| {
            raised.keep(error);
            f64::NAN
        })
    })
}
