//! How a specification is read: what is not said of its replicas follows from what is, and names of version 0.1 are
//! refused with those of today.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde::ser::{Serialize, Serializer};

use crate::JobSpec;

/// What version 0.1 called some fields, and what they are called.
pub(crate) const RENAMED: [(&str, &str); 3] =
    [("environment", "env"), ("replicas_requested", "replicas"), ("retries_max", "retries")];

impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let says_replicas = Cell::new(false);
        // The derived function of that name.
        let mut spec = Self::deserialize(Watched { inner: deserializer, says_replicas: &says_replicas })?;
        if !says_replicas.get() {
            spec.replicas = spec.replicas_min;
        }
        Ok(spec)
    }
}

impl Serialize for JobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The derived function of that name.
        Self::serialize(self, serializer)
    }
}

/// Looks at the names of fields as they are read.
struct Watched<'a, T> {
    inner: T,
    says_replicas: &'a Cell<bool>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Watched<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Watched { inner: visitor, says_replicas: self.says_replicas };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_identifier(Watched { inner: visitor, says_replicas: self.says_replicas })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Watched<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Watched { inner: map, says_replicas: self.says_replicas })
    }

    /// The name of a field. A parser knows the line of what is refused here.
    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        if let Some((_, today)) = RENAMED.iter().find(|(before, _)| *before == name) {
            return Err(E::custom(format_args!("unknown field `{name}`, expected `{today}`")));
        }
        if name == "replicas" {
            self.says_replicas.set(true);
        }
        self.inner.visit_str(name)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Watched<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.inner.next_key_seed(Watched { inner: seed, says_replicas: self.says_replicas })
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Watched<'_, K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        self.inner.deserialize(Watched { inner: deserializer, says_replicas: self.says_replicas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_only_names_its_fewest_replicas_begins_with_those() {
        let read = |text: &str| serde_json::from_str::<JobSpec>(text).unwrap();
        assert_eq!((read(r#"{"replicas_min": 2}"#).replicas, read("{}").replicas), (2, 1));
        assert_eq!(read(r#"{"replicas": 4, "replicas_min": 2}"#).replicas, 4);
        let spec = JobSpec { replicas_min: 2, ..JobSpec::new("a", 3) };
        assert_eq!(read(&serde_json::to_string(&spec).unwrap()), spec);
    }

    #[test]
    fn names_of_version_0_1_are_refused_with_those_of_today() {
        for (before, today) in RENAMED {
            let refused = serde_json::from_str::<JobSpec>(&format!(r#"{{"{before}": 1}}"#)).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("unknown field `{before}`, expected `{today}`")), "{refused}");
        }
    }
}
