//! Which sizes make a model: those that the reader of `config.json` accepts.

use std::ops::RangeInclusive;

use lily_kernels::QuantFormat;

use crate::Preset;
use crate::config::architecture::{
    MAX_CONTEXT, MAX_CONV_TAPS, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH,
    MIN_CONTEXT,
};

/// A size that makes no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{size} is {found}; wanted {wanted}")]
pub struct SizeError {
    /// Which size: `query-heads`.
    pub size: &'static str,
    /// Its value.
    pub found: usize,
    /// What it should be.
    pub wanted: String,
}

fn within(size: &'static str, found: usize, limits: RangeInclusive<usize>) -> Result<(), SizeError> {
    if limits.contains(&found) {
        return Ok(());
    }
    Err(SizeError { size, found, wanted: format!("{} to {}", limits.start(), limits.end()) })
}

fn multiple(size: &'static str, found: usize, of: &str, unit: usize) -> Result<(), SizeError> {
    if found.is_multiple_of(unit) {
        return Ok(());
    }
    Err(SizeError { size, found, wanted: format!("a multiple of {of}, {unit}") })
}

/// The product of two sizes are the inputs of a matrix, in whole groups.
fn grouped(size: &'static str, found: usize, by: &str, other: usize, group: usize) -> Result<(), SizeError> {
    if (found * other).is_multiple_of(group) {
        return Ok(());
    }
    let wanted = format!("a number that times {by}, {other}, is a multiple of group, {group}");
    Err(SizeError { size, found, wanted })
}

fn one_of(size: &'static str, found: usize, of: &[usize]) -> Result<(), SizeError> {
    if of.contains(&found) {
        return Ok(());
    }
    let listed: Vec<String> = of.iter().map(usize::to_string).collect();
    Err(SizeError { size, found, wanted: format!("one of {}", listed.join(", ")) })
}

/// Refuses a number of layers that no model has.
pub(crate) fn check_layers(count: usize) -> Result<(), SizeError> {
    within("layers", count, 1..=MAX_LAYERS)
}

/// Refuses sizes of which a checkpoint would not be accepted.
pub(super) fn check(preset: &Preset) -> Result<(), SizeError> {
    let g = &preset.geometry;
    let (a, d, m) = (&g.attention, &g.delta, &g.moe);
    check_layers(g.layers.len())?;
    for (size, found, limits) in [
        ("vocab", g.vocab, 1..=MAX_VOCAB),
        ("hidden", g.hidden, 1..=MAX_WIDTH),
        ("max-context", g.max_context, MIN_CONTEXT..=MAX_CONTEXT),
        ("query-heads", a.query_heads, 1..=MAX_HEADS),
        ("kv-heads", a.kv_heads, 1..=MAX_HEADS),
        ("head-dim", a.head_dim, 2..=MAX_HEAD_DIM),
        ("rotary-dim", a.rotary_dim, 2..=a.head_dim),
        ("key-heads", d.key_heads, 1..=MAX_HEADS),
        ("value-heads", d.value_heads, 1..=MAX_HEADS),
        ("key-dim", d.key_dim, 1..=MAX_HEAD_DIM),
        ("value-dim", d.value_dim, 1..=MAX_HEAD_DIM),
        ("conv-taps", d.conv_taps, 2..=MAX_CONV_TAPS),
        ("experts", m.experts, 1..=MAX_EXPERTS),
        ("active-experts", m.top_k, 1..=m.experts),
        ("expert-width", m.expert_width, 1..=MAX_WIDTH),
        ("shared-width", m.shared_width, 1..=MAX_WIDTH),
    ] {
        within(size, found, limits)?;
    }
    for format in [preset.format, preset.gates] {
        one_of("bits", format.bits, &QuantFormat::BITS)?;
        one_of("group", format.group, &QuantFormat::GROUPS)?;
    }
    let group = preset.format.group;
    multiple("hidden", g.hidden, "the routers' group", preset.gates.group)?;
    for (size, found) in
        [("hidden", g.hidden), ("expert-width", m.expert_width), ("shared-width", m.shared_width)]
    {
        multiple(size, found, "group", group)?;
    }
    multiple("query-heads", a.query_heads, "kv-heads", a.kv_heads)?;
    multiple("rotary-dim", a.rotary_dim, "two dimensions that turn together", 2)?;
    multiple("value-heads", d.value_heads, "key-heads", d.key_heads)?;
    grouped("query-heads", a.query_heads, "head-dim", a.head_dim, group)?;
    grouped("value-heads", d.value_heads, "value-dim", d.value_dim, group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::Synth;

    /// The message for a preset that is changed so.
    fn refused(change: impl FnOnce(&mut Preset)) -> String {
        let mut preset = Preset::named("layer4").unwrap();
        change(&mut preset);
        Synth::new(preset, 0).unwrap_err().to_string()
    }

    #[test]
    fn sizes_that_make_no_model_are_named() {
        assert_eq!(refused(|p| p.geometry.layers.clear()), "layers is 0; wanted 1 to 1024");
        assert_eq!(refused(|p| p.geometry.vocab = 1 << 25), "vocab is 33554432; wanted 1 to 16777216");
        assert_eq!(
            refused(|p| p.geometry.hidden = 2000),
            "hidden is 2000; wanted a multiple of the routers' group, 64"
        );
        assert_eq!(
            refused(|p| p.geometry.moe.expert_width = 96),
            "expert-width is 96; wanted a multiple of group, 64"
        );
        assert_eq!(refused(|p| p.geometry.moe.top_k = 257), "active-experts is 257; wanted 1 to 256");
        assert_eq!(
            refused(|p| p.geometry.attention.query_heads = 15),
            "query-heads is 15; wanted a multiple of kv-heads, 2"
        );
        assert_eq!(
            refused(|p| p.geometry.attention.rotary_dim = 63),
            "rotary-dim is 63; wanted a multiple of two dimensions that turn together, 2"
        );
        assert_eq!(
            refused(|p| p.geometry.delta.value_dim = 17),
            "value-heads is 32; wanted a number that times value-dim, 17, is a multiple of group, 64"
        );
        assert_eq!(refused(|p| p.format.bits = 7), "bits is 7; wanted one of 2, 3, 4, 5, 6, 8");
        assert_eq!(refused(|p| p.format.group = 16), "group is 16; wanted one of 32, 64, 128");
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let mut preset = Preset::named("layer4").unwrap();
        let g = &mut preset.geometry;
        (g.hidden, g.vocab, g.moe.experts) = (MAX_WIDTH, MAX_VOCAB, MAX_EXPERTS);
        (g.moe.expert_width, g.moe.shared_width) = (MAX_WIDTH, MAX_WIDTH);
        preset.set_layers(MAX_LAYERS).unwrap();
        assert!(preset.set_layers(usize::MAX).is_err());
        preset.format.bits = 8;
        preset.format.group = 32;
        assert!(Synth::new(preset, 0).unwrap().total_bytes() > 1 << 63);
    }
}
