//! Variables of a program as they are read. Whatever is wrong with them, no message shows a value.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Names with their values.
pub(crate) fn read<'de, D: Deserializer<'de>, V: From<String>>(
    deserializer: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    // Asked for a map, parsers quote whatever else they find.
    deserializer.deserialize_any(Variables(PhantomData))
}

struct Variables<V>(PhantomData<V>);

impl<'de, V: From<String>> Visitor<'de> for Variables<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names of variables with their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut variables = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let Text(value) = map.next_value()?;
            let value = value.ok_or_else(|| A::Error::custom(NotText(&name)))?;
            variables.insert(name, V::from(value));
        }
        Ok(variables)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(E::custom("a text for variables: expected names with their values"))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        self.visit_str("")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        self.visit_str("")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        self.visit_str("")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        self.visit_str("")
    }
}

struct NotText<'a>(&'a str);

impl fmt::Display for NotText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variable {:?}: expected a text, in quotes", crate::launch::without_value(self.0))
    }
}

/// The value of a variable, or nothing if it is no text.
struct Text(Option<String>);

impl<'de> serde::Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(Some(text.to_owned())))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Text, E> {
        Ok(Text(Some(text)))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
        while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
        while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

#[cfg(test)]
mod tests {
    use crate::JobSpec;

    #[test]
    fn no_message_shows_a_value() {
        for (value, expected) in [
            (r#"{"PIN": 987654321}"#, "variable \"PIN\": expected a text, in quotes"),
            (r#"{"PIN": {"a": "987654321"}}"#, "variable \"PIN\": expected a text, in quotes"),
            (r#"{"PIN": [987654321]}"#, "variable \"PIN\": expected a text, in quotes"),
            (r#"{"PIN=987654321": 1}"#, "variable \"PIN=...\": expected a text, in quotes"),
            (r#""987654321""#, "a text for variables: expected names with their values"),
            ("987654321", "a text for variables: expected names with their values"),
        ] {
            for field in ["env", "secrets"] {
                let refused = serde_json::from_str::<JobSpec>(&format!(r#"{{"{field}": {value}}}"#)).unwrap_err();
                assert!(refused.to_string().starts_with(expected), "{field} {value}: {refused}");
            }
        }
        let spec: JobSpec = serde_json::from_str(r#"{"env": {"A": "1"}, "secrets": {"B": "2"}}"#).unwrap();
        assert_eq!((spec.env["A"].as_str(), spec.secrets["B"].reveal()), ("1", "2"));
    }
}
