//! The `quantization` field: bits and group size of each matrix.

use std::collections::HashMap;

use serde_json::Value;

use super::fields::{Fields, shown};
use crate::error::{ModelError, quoted};

/// How a matrix is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Format {
    /// Bits of a packed value: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Inputs that share a scale and a bias: 32, 64 or 128.
    pub group: usize,
}

/// The default format and the exceptions by path.
#[derive(Debug)]
pub(crate) struct Quantization {
    file: String,
    field: &'static str,
    default: Format,
    /// By module path. Kept as read: a path that names no matrix of ours (a vision tower) may say anything.
    overrides: HashMap<String, Value>,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config`, its second name. `None` where neither is there.
    pub(super) fn read(top: &Fields, text: &Fields) -> Result<Option<Quantization>, ModelError> {
        for (holder, field) in [
            (top, "quantization"),
            (top, "quantization_config"),
            (text, "quantization"),
            (text, "quantization_config"),
        ] {
            let Some(fields) = holder.object(field)? else { continue };
            if let Some(method) = fields.get("quant_method")
                && !matches!(method.as_str(), Some("mlx" | "affine"))
            {
                return Err(fields.unsupported("quant_method", method, "MLX's affine quantization"));
            }
            let default = format(&fields, None)?;
            let overrides = fields
                .entries()
                .filter(|(_, value)| value.is_object() || value.is_boolean())
                .map(|(path, value)| (path.clone(), value.clone()))
                .collect();
            return Ok(Some(Quantization { file: holder.file().to_owned(), field, default, overrides }));
        }
        Ok(None)
    }

    /// The format of the matrix at `path` (`model.layers.0.mlp.gate`, without the prefix `language_model.`).
    pub(crate) fn format_of(&self, path: &str) -> Result<Format, ModelError> {
        let prefixed = format!("{}{path}", crate::checkpoint::PREFIX);
        let Some((key, value)) =
            self.overrides.get_key_value(&prefixed).or_else(|| self.overrides.get_key_value(path))
        else {
            return Ok(self.default);
        };
        match value {
            Value::Bool(true) => Ok(self.default),
            Value::Object(map) => {
                let parent = format!("{}.{}", self.field, quoted(key));
                format(&Fields::at(&self.file, parent, map), Some(self.default))
            }
            other => Err(ModelError::Unsupported {
                file: self.file.clone(),
                field: format!("{}.{}", self.field, quoted(key)),
                found: shown(other),
                wanted: "bits and group_size: every matrix must be quantized".to_owned(),
            }),
        }
    }
}

/// Reads bits, group and mode; what an override leaves out it takes from `default`.
fn format(fields: &Fields, default: Option<Format>) -> Result<Format, ModelError> {
    if let Some(mode) = fields.get("mode")
        && mode.as_str() != Some("affine")
    {
        return Err(fields.unsupported("mode", mode, "\"affine\""));
    }
    let one_of = |name: &str, default: Option<usize>, allowed: &[usize], wanted: &str| match fields.get(name)
    {
        None => default.ok_or_else(|| fields.missing(name, wanted)),
        Some(value) => value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| allowed.contains(n))
            .ok_or_else(|| fields.unsupported(name, value, wanted)),
    };
    Ok(Format {
        bits: one_of("bits", default.map(|d| d.bits), &[2, 3, 4, 5, 6, 8], "2, 3, 4, 5, 6 or 8")?,
        group: one_of("group_size", default.map(|d| d.group), &[32, 64, 128], "32, 64 or 128")?,
    })
}
