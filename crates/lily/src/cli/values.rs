//! Values of flags, with their ranges: what was found and what is wanted.

use std::str::FromStr;

use clap::ValueEnum;
use lily_cpu::Isa;

/// Something to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The best that this machine has.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u16),
    /// The GPU of a Mac.
    Metal,
    /// The kernels of GPUs, emulated on the processor.
    Emu,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            "metal" => Ok(Device::Metal),
            "emu" => Ok(Device::Emu),
            _ => number(text).map(Device::Cuda).ok_or_else(|| {
                "wanted auto, cpu, metal, cuda (or cuda:N with a GPU's number), or emu".to_owned()
            }),
        }
    }
}

/// A number of tokens, at least `LEAST`: `4096`, `4k`, `128K` (powers of 1024, as contexts are counted).
pub(crate) fn tokens<const LEAST: u32>(text: &str) -> Result<u32, String> {
    let wanted = || format!("wanted a number of tokens of at least {LEAST}, as 4096 or 4K");
    let trimmed = text.trim();
    let (digits, unit) = match trimmed.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (trimmed, 1),
    };
    let number: u32 = digits.parse().map_err(|_| wanted())?;
    number.checked_mul(unit).filter(|n| *n >= LEAST).ok_or_else(wanted)
}

/// An instruction set that this processor has.
pub(crate) fn isa(text: &str) -> Result<Isa, String> {
    let available = Isa::available();
    let words = available.iter().map(|isa| isa.word()).collect::<Vec<_>>().join(", ");
    match Isa::named(text) {
        Some(isa) if available.contains(&isa) => Ok(isa),
        Some(_) => Err(format!("this processor does not have it; it has {words}")),
        None => Err(format!("wanted one of {words}")),
    }
}

/// Rounding of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// float32 activations: agrees with the reference model to its own rounding.
    Exact,
    /// 16-bit integer activations in products with 4-bit matrices, except where experts are chosen; nearly always with
    /// the same most probable token: --device cpu only.
    Fast,
    /// 16-bit activations (attention and its cache in bfloat16, others in float16), with sums, gates and states in float32: --device
    /// cuda and emu.
    Bf16,
}

/// A phase of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// A chunk of a prompt.
    Prefill,
    /// The next token.
    Decode,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

/// A seed: any 64-bit integer, as a request may bring one; -1 is a random one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text.parse::<u64>(), text.parse::<i64>()) {
            (_, Ok(-1)) => Ok(Seed(None)),
            (Ok(seed), _) => Ok(Seed(Some(seed))),
            (_, Ok(signed)) => Ok(Seed(Some(signed as u64))),
            _ => Err("wanted an integer of 64 bits, or -1 for a random seed".to_owned()),
        }
    }
}

/// A further name of a model.
pub(crate) fn alias(text: &str) -> Result<String, String> {
    if text.is_empty() || text.trim() != text || text.contains(char::is_control) {
        return Err("wanted a name without control characters, and without blanks at its ends".to_owned());
    }
    Ok(text.to_owned())
}

/// A number of bytes: `1500000`, `512M`, `4G` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            || format!("{text:?} is not a size: wanted a number of bytes, or one with K, M, G or T: 512M");
        let trimmed = text.trim().trim_end_matches(['B', 'b']).trim_end_matches(['i']);
        let (digits, shift) = match trimmed.char_indices().last() {
            Some((at, unit)) if unit.is_ascii_alphabetic() => {
                let shift = "KMGT".find(unit.to_ascii_uppercase()).map(|i| 10 * (i + 1));
                (&trimmed[..at], shift.ok_or_else(wanted)?)
            }
            _ => (trimmed, 0),
        };
        let number: usize = digits.trim().parse().map_err(|_| wanted())?;
        number.checked_mul(1 << shift).map(ByteSize).ok_or_else(wanted)
    }
}

pub(crate) fn model(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("wanted a model folder, or ORG/NAME in the Hugging Face cache".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn number(text: &str, wanted: &str, accept: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && accept(x) => Ok(x),
        _ => Err(format!("wanted a number {wanted}")),
    }
}

pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    number(text, "from 0 to 2", |x| (0.0..=2.0).contains(&x))
}

pub(crate) fn top_p(text: &str) -> Result<f32, String> {
    number(text, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)
}

pub(crate) fn share(text: &str) -> Result<f32, String> {
    number(text, "from 0 to 1", |x| (0.0..=1.0).contains(&x))
}

pub(crate) fn repetition(text: &str) -> Result<f32, String> {
    number(text, "above 0 and at most 10", |x| x > 0.0 && x <= 10.0)
}

pub(crate) fn penalty(text: &str) -> Result<f32, String> {
    number(text, "from -2 to 2", |x| (-2.0..=2.0).contains(&x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("1K", 1024), ("512M", 512 << 20), ("4GiB", 4 << 30), ("2 gb", 2 << 30)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "-1", "x", "1.5G", "4X", "G", "99999999999T", "é"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_may_be_counted_in_units_of_1024() {
        for (text, wanted) in [("2", 2), ("4096", 4096), ("4k", 4096), ("128K", 131_072)] {
            assert_eq!(tokens::<2>(text), Ok(wanted), "{text}");
        }
        for text in ["", "1", "k", "4kk", "4.5k", "-4k", "4M", "4194304k", "0k"] {
            let refused = tokens::<2>(text).unwrap_err();
            assert!(refused.contains("at least 2, as 4096 or 4K"), "{text}: {refused}");
        }
        assert_eq!(tokens::<0>("0"), Ok(0));
    }

    #[test]
    fn a_seed_is_any_integer_of_64_bits_and_minus_one_is_random() {
        for (text, seed) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("-1", None),
            ("-2", Some(u64::MAX - 1)),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(text.parse(), Ok(Seed(seed)), "{text}");
        }
        for text in ["", "x", "1.5", "18446744073709551616", "--1", " 1"] {
            assert!(text.parse::<Seed>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_further_name_can_be_asked_for() {
        assert!(alias("gpt-4o").is_ok() && alias("org/a model").is_ok());
        for text in ["", " ", " a", "a\n", "a\x1b[0m"] {
            assert!(alias(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn devices() {
        let found = ["auto", "cpu", "emu", "cuda", "cuda:0", "cuda:7"].map(|text| text.parse());
        let wanted =
            [Device::Auto, Device::Cpu, Device::Emu, Device::Cuda(0), Device::Cuda(0), Device::Cuda(7)];
        assert_eq!(found, wanted.map(Ok));
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda0", "cuda:70000", "CPU"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(temperature("nan").is_err() && temperature("-0.1").is_err() && temperature("2.1").is_err());
        assert!(top_p("0").is_err() && top_p("1").is_ok() && share("0").is_ok() && share("inf").is_err());
        assert!(repetition("0").is_err() && penalty("-2").is_ok() && penalty("2.5").is_err());
    }
}
