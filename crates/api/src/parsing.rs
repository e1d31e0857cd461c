//! What a parser refuses, told with the field it is about and in words for people who do not write Rust.

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

/// What parsers say, and what they mean.
const WORDS: [(&str, &str); 20] = [
    ("invalid type: integer ", ""),
    ("invalid value: integer ", ""),
    ("invalid type: floating point ", ""),
    ("invalid value: floating point ", ""),
    ("invalid type: boolean ", ""),
    ("invalid type: string ", "the text "),
    ("invalid value: string ", "the text "),
    ("invalid type: sequence", "a list"),
    ("invalid type: map", "an object"),
    ("invalid type: null", "null"),
    ("invalid type: unit value", "nothing"),
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected i32", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("expected a string", "expected a text"),
    ("expected a boolean", "expected true or false"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected an object"),
];
/// What is below these is the users' own: a mistake in it may be a secret in the place of a name.
const OWN: [&str; 2] = ["env", "secrets"];

/// A parser's message in plain words.
pub fn in_plain_words(message: &str) -> String {
    WORDS.iter().fold(message.to_owned(), |message, (said, meant)| message.replace(said, meant))
}

/// Reads JSON, and says of which field it was refused.
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, (serde_json::Error, String)> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let field = field(error.path());
        let message = in_plain_words(&error.inner().to_string());
        let message = if field.is_empty() { message } else { format!("{field}: {message}") };
        (error.into_inner(), message)
    })?;
    parser.end().map_err(|error| {
        let message = error.to_string();
        (error, message)
    })?;
    Ok(value)
}

fn field(path: &serde_path_to_error::Path) -> String {
    let mut field = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } => {
                let is_own = OWN.contains(&key.as_str());
                field += if field.is_empty() { "" } else { "." };
                field += key;
                if is_own {
                    break;
                }
            }
            Segment::Seq { index } => field += &format!("[{index}]"),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_job::JobSpec;

    #[test]
    fn a_refusal_names_the_field_and_what_was_expected() {
        let said = |text: &str| read_json::<JobSpec>(text.as_bytes()).unwrap_err().1;
        let replicas = said(r#"{"replicas_max": "many"}"#);
        let expected = "replicas_max: the text \"many\", expected a whole number from 0 to 4294967295 at line 1";
        assert!(replicas.starts_with(expected), "{replicas}");
        assert!(said(r#"{"command": ["a", 1]}"#).starts_with("command[1]: `1`, expected a text"));
        let variables = said(r#"{"secrets": {"KEY=hunter2": 1}}"#);
        assert!(variables.starts_with("secrets: ") && !variables.contains("hunter2"), "{variables}");
        assert!(said(r#"{} x"#).starts_with("trailing characters"));
    }
}
