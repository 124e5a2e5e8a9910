//! A plan as a graph makes the same bits as its launches.

use lily_kernels::random::Random;
use lily_model::plan::Activation;
use lily_model::testing::checks::Subject as _;
use lily_model::testing::checks::{Check, check, logits, runner_on, short_blocks, tiny};
use lily_model::testing::oracle::states;
use lily_model::testing::random_tokens;
use lily_model::{Forward, LogitRows};

use crate::set::Set;

pub(crate) fn all() -> Vec<Check<Set>> {
    let of = |activation: Activation| {
        let name = format!("graphs change no bit, {}", activation.name());
        check(name, move |set| graphs(set, activation))
    };
    Activation::ALL.into_iter().map(of).collect()
}

fn graphs(set: &Set, activation: Activation) -> String {
    let model = tiny();
    let tokens = random_tokens(&mut Random::new(6), &model, 120);
    let profile = short_blocks(set.profile(activation));
    let run = |graphs: bool| {
        let device = set.device_with(&model, &profile, 1 << 28, graphs);
        let mut runner = runner_on(&model, device);
        let sequence = runner.open().unwrap();
        runner.prefill(sequence, &tokens[..60], LogitRows::Last).unwrap();
        let mut made = logits(&runner, 1);
        for token in &tokens[60..] {
            runner.decode(&[(sequence, *token)]).unwrap();
            made.extend(logits(&runner, 1));
        }
        made.extend(states(runner.device(), &model, sequence));
        made
    };
    assert!(run(true) == run(false), "a graph makes other bits than its launches");
    "60 steps".to_owned()
}
