//! Which cases are measured with which mechanisms, and what is measured in turn.

use anyhow::{Context, Result, bail, ensure};
use lily_model::LogitRows;
use lily_model::plan::{self, DecodeShape, Effect, Plan, Profile, Switch, Switches, Tail, Target};

use super::cases::{Case, Cases};
use crate::cli::Phase;

/// A case as it is measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    pub(super) case: Case,
    /// The mechanisms.
    pub(super) switches: Switches,
    /// Tokens of a prefill chunk.
    pub(super) chunk: usize,
    /// The mechanism that it does without, or `all`.
    pub(super) without: Option<String>,
    /// Of those in its group, the one with this mechanism.
    pub(super) beside: Option<usize>,
    /// Whether it has a line of its own; what stands beside another alone has none.
    pub(super) is_reported: bool,
}

impl Trial {
    /// `pp512 without gqa-pack`.
    pub(super) fn name(&self) -> String {
        match &self.without {
            None => self.case.name(),
            Some(mechanism) => format!("{} without {mechanism}", self.case.name()),
        }
    }
}

/// What is measured in turn.
pub(super) type Group = Vec<Trial>;

/// A mechanism, or all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Off {
    One(Switch),
    All,
}

impl Off {
    fn name(self) -> &'static str {
        match self {
            Off::One(switch) => switch.name(),
            Off::All => "all",
        }
    }

    fn has_effect_in(self, phase: Phase) -> bool {
        match self {
            Off::All => true,
            Off::One(switch) => match switch.effect() {
                Effect::Both => true,
                Effect::Prefill => phase == Phase::Prefill,
                Effect::Decode => phase == Phase::Decode,
            },
        }
    }

    /// With and without it. One that the device has off by itself is turned on for the comparison.
    fn sides(self, own: Switches) -> (Switches, Switches) {
        match self {
            Off::All => (own, Switches::NONE),
            Off::One(switch) => (own.with(switch), own.without(switch)),
        }
    }
}

/// What `--ablate` names; nothing named is every mechanism.
fn named(names: &[String], profile: &Profile) -> Result<Vec<Off>> {
    ensure!(
        profile.is_gpu(),
        "--ablate and --sweep ablations are for devices that run the kernels of GPUs, cuda and emu; {} has no mechanisms to \
         turn off",
        profile.name
    );
    if names.is_empty() {
        return Ok(Switch::ALL.map(Off::One).to_vec());
    }
    let of = |name: &String| match Switch::named(name) {
        Some(switch) => Ok(Off::One(switch)),
        None if name == "all" => Ok(Off::All),
        None => bail!(
            "--ablate {name} names no mechanism; `lily plan --ablate list` names them, `all` is every one"
        ),
    };
    names.iter().map(of).collect()
}

/// Groups of trials: all together, or each length and each mechanism by itself. A mechanism that changes nothing in the plan of a
/// case is not measured, and goes into `left_out`.
pub(super) fn groups(
    cases: &mut Cases,
    names: &[String],
    target: Target<'_>,
    chunk: usize,
    is_apart: bool,
) -> Result<Vec<Group>> {
    let own = target.profile.switches;
    let plain = |case| Trial { case, switches: own, chunk, without: None, beside: None, is_reported: true };
    let mut groups: Vec<Group> = cases.plain.iter().map(|case| vec![plain(*case)]).collect();
    let off = if cases.ablated.is_empty() { Vec::new() } else { named(names, target.profile)? };
    for case in &cases.ablated {
        let mut together = vec![plain(*case)];
        for off in &off {
            let (with, without) = off.sides(own);
            let one = Trial { switches: with, is_reported: false, ..plain(*case) };
            let mut other = Trial { switches: without, without: Some(off.name().to_owned()), ..plain(*case) };
            if let Case::Prefill { tokens } = case
                && !without.has(Switch::ChunkedPrefill)
            {
                other.chunk = tokens.max(&chunk).to_owned();
            }
            if !off.has_effect_in(case.phase()) || is_same(target, &one, &other)? {
                cases.left_out.push(format!("{}: nothing changes without {}", case.name(), off.name()));
            } else if is_apart {
                groups.push(vec![one, Trial { beside: Some(0), ..other }]);
            } else {
                // The first has the device's own mechanisms, so it is the other side of each that is on.
                let beside = if with == own { 0 } else { together.len() };
                if with != own {
                    together.push(one);
                }
                together.push(Trial { beside: Some(beside), ..other });
            }
        }
        if !is_apart {
            groups.push(together);
        }
    }
    ensure!(!groups.is_empty(), "nothing is left to measure: {}", cases.left_out.join("; "));
    Ok(if is_apart { groups } else { vec![joined(groups)] })
}

/// One group of several.
fn joined(groups: Vec<Group>) -> Group {
    let mut all = Group::new();
    for group in groups {
        let before = all.len();
        let moved = |trial: Trial| Trial { beside: trial.beside.map(|at| at + before), ..trial };
        all.extend(group.into_iter().map(moved));
    }
    all
}

/// Whether two trials launch the same.
fn is_same(target: Target<'_>, a: &Trial, b: &Trial) -> Result<bool> {
    let launches = |trial: &Trial| -> Result<Plan> {
        let profile = target.profile.clone().with_switches(trial.switches);
        let target = Target { profile: &profile, ..target };
        let plan = match trial.case {
            Case::Prefill { tokens } => {
                plan::prefill(target, tokens.min(trial.chunk), tokens, LogitRows::Last)
            }
            Case::Decode { depth, steps } => {
                let chooses = profile.is_gpu() && profile.has(Switch::TokenHandoff);
                let tail = if chooses { Tail::Select { entries: 0 } } else { Tail::Logits };
                plan::decode(target, DecodeShape { tail, ..DecodeShape::logits(1, depth + steps) })
            }
        };
        plan.with_context(|| trial.case.flags())
    };
    let (a, b) = (launches(a)?, launches(b)?);
    Ok(a.launches == b.launches && a.stages == b.stages && a.rows == b.rows)
}

#[cfg(test)]
mod tests {
    use lily_model::Preset;

    use super::super::cases;
    use super::super::tests::flags;
    use super::*;

    fn of(arguments: &str, profile: &Profile) -> Result<(Vec<Group>, Vec<String>)> {
        let preset = Preset::named("layer4").unwrap();
        let weights = preset.weights().packed().0;
        let target = Target { geometry: &preset.geometry, weights: &weights, profile };
        let flags = flags(arguments);
        let mut cases = cases::of(&flags, 262_144)?;
        let groups = groups(&mut cases, &flags.ablate, target, profile.prefill_chunk, flags.is_apart())?;
        Ok((groups, cases.left_out))
    }

    fn names(group: &Group) -> Vec<String> {
        group.iter().map(Trial::name).collect()
    }

    #[test]
    fn a_mechanism_stands_beside_the_same_with_it() {
        let h200 = Profile::named("cuda:h200").unwrap();
        let (groups, left_out) = of("--ablate gqa-pack,gdn-regscan --prompt 512 --depth 4K", &h200).unwrap();
        let wanted =
            ["pp512", "pp512 without gdn-regscan", "tg128 @ d4096", "tg128 @ d4096 without gqa-pack"];
        assert_eq!(names(&groups[0]), wanted);
        let besides: Vec<_> = groups[0].iter().map(|trial| trial.beside).collect();
        assert_eq!(besides, [None, Some(0), None, Some(2)]);
        assert!(groups[0].iter().all(|trial| trial.is_reported));
        assert!(
            !groups[0][1].switches.has(Switch::GdnRegscan) && groups[0][0].switches.has(Switch::GdnRegscan)
        );
        assert_eq!(left_out.len(), 2);
    }

    #[test]
    fn a_sweep_takes_each_mechanism_where_it_changes_something_by_itself() {
        let h200 = Profile::named("cuda:h200").unwrap();
        let (groups, left_out) = of("--sweep lengths,ablations --gen 64", &h200).unwrap();
        assert!(groups[..20].iter().all(|group| group.len() == 1 && group[0].without.is_none()));
        let pairs = &groups[20..];
        assert!(pairs.len() > 50, "{}", pairs.len());
        for pair in pairs {
            assert!(
                pair.len() == 2 && pair[1].beside == Some(0) && !pair[0].is_reported && pair[1].is_reported
            );
            assert!(pair[0].case == pair[1].case && pair[0].switches != pair[1].switches);
        }
        let has = |name: &str| pairs.iter().any(|pair| pair[1].name() == name);
        assert!(has("pp131072 without chunked-prefill") && has("tg64 @ d32768 without block-attention"));
        // One chunk is what a short prompt has anyway.
        assert!(!has("pp512 without chunked-prefill"));
        assert!(
            left_out.iter().any(|text| text == "pp512: nothing changes without chunked-prefill"),
            "{left_out:?}"
        );
        let long = pairs.iter().find(|pair| pair[1].name() == "pp131072 without chunked-prefill").unwrap();
        assert_eq!((long[0].chunk, long[1].chunk), (h200.prefill_chunk, 131_072));
    }

    #[test]
    fn what_cannot_be_turned_off_is_said() {
        let h200 = Profile::named("cuda:h200").unwrap();
        for (arguments, profile, wanted) in [
            ("--ablate no-such", &h200, "--ablate no-such names no mechanism"),
            ("--ablate all", &Profile::cpu(), "cuda and emu; cpu has no mechanisms"),
            ("--ablate chunked-prefill --prompt 8 --gen 0", &h200, ""),
        ] {
            match of(arguments, profile) {
                Err(error) => assert!(!wanted.is_empty() && error.to_string().contains(wanted), "{error}"),
                Ok((groups, _)) => assert!(wanted.is_empty() && groups[0].len() == 1, "{arguments}"),
            }
        }
    }
}
