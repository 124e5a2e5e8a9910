//! Typed, bounded reads of a request's fields. Nothing past this point sees a NaN, a negative count or a huge number.

use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind};

/// A JSON object whose fields are read by name; `null` is absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Goes before a name in error messages: `""`, or `"reasoning."` for an inner object.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>, prefix: &'a str) -> Self {
        Fields { map, prefix }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, found: &Value, wanted: &str) -> ApiError {
        ApiError::value(&format!("{}{name}", self.prefix), found, wanted)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "a string"))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(name, value, "an object"))
    }

    /// A number in `low..=high`.
    pub(crate) fn number(&self, name: &str, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number as f32)),
            _ => Err(self.wrong(name, value, &format!("a number from {low} to {high}"))),
        }
    }

    /// A whole number in `low..=high`; `5.0` is whole.
    pub(crate) fn integer(&self, name: &str, low: u32, high: u32) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.fract() == 0.0 && (f64::from(low)..=f64::from(high)).contains(&number) => {
                Ok(Some(number as u32))
            }
            _ => Err(self.wrong(name, value, &format!("an integer from {low} to {high}"))),
        }
    }

    /// A count that may be 0; -1 stands for no bound, as `None` inside.
    pub(crate) fn bound(&self, name: &str) -> Result<Option<Option<usize>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(-1.0) => Ok(Some(None)),
            Some(number) if number.fract() == 0.0 && (0.0..=f64::from(i32::MAX)).contains(&number) => {
                Ok(Some(Some(number as usize)))
            }
            _ => Err(self.wrong(name, value, "an integer from 0, or -1 for no bound")),
        }
    }

    /// A count from 1 to `high`; -1 stands for no bound, as `None` inside.
    pub(crate) fn limit(&self, name: &str, high: u32) -> Result<Option<Option<usize>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(-1.0) => Ok(Some(None)),
            Some(number) if number.fract() == 0.0 && (1.0..=f64::from(high)).contains(&number) => {
                Ok(Some(Some(number as usize)))
            }
            _ => Err(self.wrong(name, value, &format!("an integer from 1 to {high}, or -1 for no bound"))),
        }
    }

    /// Any 64-bit integer, signed or not; -1 asks for a random one, as `None` inside, and others below 0 keep their bits.
    pub(crate) fn seed(&self, name: &str) -> Result<Option<Option<u64>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let bits = value.as_u64().or_else(|| value.as_i64().map(|signed| signed as u64));
        if value.as_i64() == Some(-1) {
            return Ok(Some(None));
        }
        bits.map(|bits| Some(Some(bits))).ok_or_else(|| self.wrong(name, value, "an integer of 64 bits"))
    }

    /// One string or several, none empty.
    pub(crate) fn strings(
        &self,
        name: &str,
        most: usize,
        longest: usize,
    ) -> Result<Option<Vec<String>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wanted =
            || format!("a string or an array of at most {most} strings, each of 1 to {longest} bytes");
        let one = |item: &Value| match item.as_str() {
            Some(text) if (1..=longest).contains(&text.len()) => Ok(text.to_string()),
            _ => Err(self.wrong(name, item, &wanted())),
        };
        match value {
            Value::Array(items) if items.len() <= most => {
                items.iter().map(one).collect::<Result<_, _>>().map(Some)
            }
            Value::Array(_) => Err(self.wrong(name, value, &wanted())),
            item => Ok(Some(vec![one(item)?])),
        }
    }

    /// `{"token id": bias}`; ids below `vocabulary`.
    pub(crate) fn logit_bias(&self, name: &str, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
        const MOST: usize = 4096;
        const LARGEST: f64 = 100.0;
        let Some(map) = self.object(name)? else { return Ok(Vec::new()) };
        if map.len() > MOST {
            return Err(Kind::InvalidValue
                .error(format!("`{name}` has {} entries, and may have at most {MOST}", map.len()))
                .at(name));
        }
        let mut biases = Vec::with_capacity(map.len());
        for (key, value) in map {
            let id = key.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary).ok_or_else(|| {
                let found = Value::from(key.as_str());
                ApiError::value(name, &found, &format!("keyed by token ids below {vocabulary}"))
            })?;
            let bias = value.as_f64().filter(|bias| bias.abs() <= LARGEST).ok_or_else(|| {
                ApiError::value(&format!("{name}.{id}"), value, "a number from -100 to 100")
            })?;
            biases.push((id, bias as f32));
        }
        Ok(biases)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with<T>(value: Value, read: impl Fn(Fields) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let body = json!({ "x": value });
        read(Fields::new(body.as_object().expect("an object"), ""))
    }

    #[test]
    fn numbers_stay_in_range() {
        let read = |value| with(value, |fields| fields.number("x", 0.0, 2.0));
        assert_eq!(read(json!(0.5)), Ok(Some(0.5)));
        assert_eq!(read(json!(2)), Ok(Some(2.0)));
        assert_eq!(read(Value::Null), Ok(None));
        for wrong in [json!(-0.1), json!(2.1), json!(1e300), json!("1"), json!([1]), json!(true)] {
            let error = read(wrong.clone()).expect_err("out of range");
            assert_eq!(error.param.as_deref(), Some("x"), "{wrong}");
            assert!(error.message.contains(&brief_of(&wrong)), "{}", error.message);
        }
    }

    fn brief_of(value: &Value) -> String {
        crate::errors::brief(value)
    }

    #[test]
    fn integers_are_whole() {
        let read = |value| with(value, |fields| fields.integer("x", 1, 100));
        assert_eq!(read(json!(7)), Ok(Some(7)));
        assert_eq!(read(json!(7.0)), Ok(Some(7)));
        for wrong in [json!(0), json!(-1), json!(7.5), json!(1u64 << 60), json!("7"), json!({})] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_counts_or_no_bound() {
        let read = |value| with(value, |fields| fields.limit("x", 100));
        assert_eq!(read(json!(7)), Ok(Some(Some(7))));
        assert_eq!((read(json!(-1)), read(json!(null))), (Ok(Some(None)), Ok(None)));
        for wrong in [json!(0), json!(-2), json!(101), json!(1.5), json!("7"), json!([])] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seeds_are_any_64_bits() {
        let read = |value| with(value, |fields| fields.seed("x"));
        assert_eq!(read(json!(u64::MAX)), Ok(Some(Some(u64::MAX))));
        assert_eq!(read(json!(-2)), Ok(Some(Some(u64::MAX - 1))));
        assert_eq!((read(json!(-1)), read(json!(null))), (Ok(Some(None)), Ok(None)));
        assert!(read(json!(1.5)).is_err());
        assert!(read(json!(1e30)).is_err());
    }

    #[test]
    fn stop_strings() {
        let read = |value| with(value, |fields| fields.strings("x", 2, 5));
        assert_eq!(read(json!("a")), Ok(Some(vec!["a".into()])));
        assert_eq!(read(json!(["a", "b"])), Ok(Some(vec!["a".into(), "b".into()])));
        assert_eq!(read(json!([])), Ok(Some(vec![])));
        for wrong in
            [json!(""), json!(["a", ""]), json!(["a", "b", "c"]), json!("toolong"), json!([1]), json!([null])]
        {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn biases_name_known_tokens() {
        let read = |value| with(value, |fields| fields.logit_bias("x", 10));
        assert_eq!(read(json!({"3": -100, "9": 1.5})), Ok(vec![(3, -100.0), (9, 1.5)]));
        for wrong in [
            json!({"10": 1}),
            json!({"-1": 1}),
            json!({"a": 1}),
            json!({"1": 101}),
            json!({"1": "x"}),
            json!([]),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
