//! What is measured, and in which order.

use anyhow::{Result, ensure};

use crate::cli::{BenchFlags, Phase, Sweep};

/// The lengths of `--sweep lengths`.
const LENGTHS: [usize; 10] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// Those of `--sweep ablations`.
const ABLATED_PROMPTS: [usize; 4] = [512, 4096, 32_768, 131_072];
const ABLATED_DEPTHS: [usize; 4] = [256, 4096, 32_768, 131_072];

/// Something to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// A whole prompt into an empty sequence.
    Prefill { tokens: usize },
    /// One token after the other, after `depth` tokens.
    Decode { depth: usize, steps: usize },
}

impl Case {
    pub(super) fn phase(self) -> Phase {
        match self {
            Case::Prefill { .. } => Phase::Prefill,
            Case::Decode { .. } => Phase::Decode,
        }
    }

    /// The prompt's length, or the tokens before the first step.
    pub(super) fn context(self) -> usize {
        match self {
            Case::Prefill { tokens } => tokens,
            Case::Decode { depth, .. } => depth,
        }
    }

    /// Tokens that are timed.
    pub(super) fn tokens(self) -> usize {
        match self {
            Case::Prefill { tokens } => tokens,
            Case::Decode { steps, .. } => steps,
        }
    }

    /// Tokens that its sequence holds at the end.
    pub(super) fn end(self) -> usize {
        match self {
            Case::Prefill { tokens } => tokens,
            Case::Decode { depth, steps } => depth + steps,
        }
    }

    /// As engineers call it: `pp512`, `tg128`, `tg128 @ d2048`.
    pub(super) fn name(self) -> String {
        match self {
            Case::Prefill { tokens } => format!("pp{tokens}"),
            Case::Decode { depth: 0, steps } => format!("tg{steps}"),
            Case::Decode { depth, steps } => format!("tg{steps} @ d{depth}"),
        }
    }

    /// The flags that asked for it.
    pub(super) fn flags(self) -> String {
        match self {
            Case::Prefill { tokens } => format!("--prompt {tokens}"),
            Case::Decode { depth, steps } => format!("--depth {depth} with --gen {steps}"),
        }
    }
}

/// What the flags ask for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cases {
    /// With the device's own mechanisms.
    pub(super) plain: Vec<Case>,
    /// With and without single ones.
    pub(super) ablated: Vec<Case>,
    /// What was left out, and why.
    pub(super) left_out: Vec<String>,
}

/// What the flags ask for, each once, of a model that takes at most `longest` tokens.
pub(super) fn of(flags: &BenchFlags, longest: usize) -> Result<Cases> {
    let mut cases = Cases::default();
    for (sweep, prompts, depths) in [
        (Sweep::Lengths, &LENGTHS[..], &LENGTHS[..]),
        (Sweep::Ablations, &ABLATED_PROMPTS[..], &ABLATED_DEPTHS[..]),
    ] {
        if flags.sweep.contains(&sweep) {
            let found = swept(flags.steps as usize, prompts, depths, longest, &mut cases.left_out);
            match sweep {
                Sweep::Lengths => cases.plain = found,
                Sweep::Ablations => cases.ablated = found,
            }
        }
    }
    if flags.sweep.is_empty() {
        let found = asked(flags, longest)?;
        if flags.ablate.is_empty() { cases.plain = found } else { cases.ablated = found }
    }
    Ok(cases)
}

/// The cases of a sweep. The steps after the deepest start end at the model's limit if that is where it starts.
fn swept(
    steps: usize,
    prompts: &[usize],
    depths: &[usize],
    longest: usize,
    left_out: &mut Vec<String>,
) -> Vec<Case> {
    let fits = |n: &&usize| **n <= longest;
    if let Some(first) = prompts.iter().chain(depths).find(|n| **n > longest) {
        left_out.push(format!("{first} tokens and more: the model takes at most {longest}"));
    }
    let prefill = prompts.iter().filter(fits).map(|n| Case::Prefill { tokens: *n });
    let depth = |n: &usize| Case::Decode { depth: (*n).min(longest.saturating_sub(steps)), steps };
    let decode = depths.iter().filter(|_| steps > 0 && steps < longest).filter(fits).map(depth);
    prefill.chain(decode).collect()
}

/// What `--prompt`, `--gen` and `--depth` ask for.
fn asked(flags: &BenchFlags, longest: usize) -> Result<Vec<Case>> {
    let steps = flags.steps as usize;
    let prompts = flags.prompt.iter().filter(|n| **n > 0).map(|n| Case::Prefill { tokens: *n as usize });
    let depths = flags.depth.iter().filter(|_| steps > 0);
    let mut cases: Vec<Case> = Vec::new();
    for case in prompts.chain(depths.map(|n| Case::Decode { depth: *n as usize, steps })) {
        ensure!(
            case.end() <= longest,
            "{} takes {} tokens of context; wanted at most the model's {longest}",
            case.flags(),
            case.end()
        );
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    ensure!(
        !cases.is_empty(),
        "--prompt 0 and --gen 0 leave nothing to measure; wanted at least one above 0"
    );
    Ok(cases)
}

/// In which order `cases` of them are measured the `round`th time: every second time backwards, so that a machine that
/// grows slower or faster meanwhile does so for all of them.
pub(super) fn order(cases: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cases).collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::tests::flags;
    use super::*;

    #[test]
    fn each_prompt_and_each_depth_is_a_case_once() {
        let named = |arguments: &str| -> Vec<String> {
            of(&flags(arguments), 4096).unwrap().plain.into_iter().map(Case::name).collect()
        };
        assert_eq!(named(""), ["pp512", "tg128"]);
        assert_eq!(
            named("--prompt 128,512,128 --gen 8 --depth 4088,0"),
            ["pp128", "pp512", "tg8 @ d4088", "tg8"]
        );
        assert_eq!(named("--prompt 0 --gen 1"), ["tg1"]);
        assert_eq!(named("--prompt 7,0 --gen 0 --depth 4096"), ["pp7"]);
    }

    #[test]
    fn sweeps_have_their_lengths_as_far_as_the_model_goes() {
        let named = |cases: &[Case]| cases.iter().map(|case| case.name()).collect::<Vec<_>>();
        let whole = of(&flags("--sweep lengths,ablations --gen 64"), 262_144).unwrap();
        assert_eq!((whole.plain.len(), whole.ablated.len(), whole.left_out.len()), (20, 8, 0));
        assert_eq!(named(&whole.plain)[9..11], ["pp131072", "tg64 @ d256"]);
        let ablated =
            ["pp512", "pp4096", "pp32768", "pp131072", "tg64 @ d256", "tg64 @ d4096", "tg64 @ d32768"];
        assert_eq!(named(&whole.ablated)[..7], ablated);
        let short = of(&flags("--sweep lengths --gen 8"), 512).unwrap();
        assert_eq!(named(&short.plain), ["pp256", "pp512", "tg8 @ d256", "tg8 @ d504"]);
        assert_eq!(short.left_out, ["1024 tokens and more: the model takes at most 512"]);
        assert_eq!(of(&flags("--ablate all"), 4096).unwrap().ablated.len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_flag() {
        for (arguments, wanted) in [
            (
                "--prompt 512,4097",
                "--prompt 4097 takes 4097 tokens of context; wanted at most the model's 4096",
            ),
            (
                "--depth 0,4000 --gen 97",
                "--depth 4000 with --gen 97 takes 4097 tokens of context; wanted at most",
            ),
            ("--prompt 4294967295", "--prompt 4294967295 takes 4294967295 tokens"),
            ("--prompt 0 --gen 0", "--prompt 0 and --gen 0 leave nothing to measure"),
        ] {
            let error = of(&flags(arguments), 4096).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn rounds_go_forwards_and_backwards() {
        let rounds: Vec<_> = (0..3).map(|round| order(3, round)).collect();
        assert_eq!(rounds, [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
    }
}
