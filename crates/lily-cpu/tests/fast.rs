//! How far rounded activations are from exact ones, by what is read off a model: the distribution of the next token.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_cpu::Precision;
use lily_kernels::random::Random;
use lily_model::{Forward, Model};
use support::*;

/// Of the mean KL divergence from the exact distribution, in nats.
const KL: f64 = 1e-3;
/// The share of positions whose most probable token is the same.
const SAME_TOP: f64 = 0.99;
/// Of the relative difference of perplexities.
const PERPLEXITY: f64 = 2e-3;

/// log softmax.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    logits.iter().map(|x| f64::from(x - top) - sum.ln()).collect()
}

/// Sums over positions.
#[derive(Default)]
struct Errors {
    positions: usize,
    same_top: usize,
    kl: f64,
    /// Of the tokens that follow: log probabilities, exact and fast.
    followed: usize,
    exact: f64,
    fast: f64,
}

impl Errors {
    fn add(&mut self, exact: &[f32], fast: &[f32], next: Option<u32>) {
        let (p, q) = (log_probabilities(exact), log_probabilities(fast));
        self.kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        self.same_top += usize::from(top(exact) == top(fast));
        self.positions += 1;
        if let Some(next) = next {
            self.followed += 1;
            self.exact += p[next as usize];
            self.fast += q[next as usize];
        }
    }

    /// A prompt through both.
    fn compare(&mut self, model: &Arc<Model>, tokens: &[u32]) {
        let logits = [Precision::Exact, Precision::Fast].map(|precision| {
            let mut runner = runner_with(model, 2, None, precision);
            let sequence = runner.open().unwrap();
            all_logits(&mut runner, sequence, tokens, 64, tokens.len() / 2)
        });
        for (i, (exact, fast)) in logits[0].iter().zip(&logits[1]).enumerate() {
            self.add(exact, fast, tokens.get(i + 1).copied());
        }
    }

    fn check(&self, name: &str) {
        let kl = self.kl / self.positions as f64;
        let same = self.same_top as f64 / self.positions as f64;
        let perplexity = ((self.exact - self.fast) / self.followed as f64).exp() - 1.0;
        println!(
            "{name}: {} positions, KL {kl:.1e}, same top {:.2}%, perplexity {:+.3}% of {:.2}",
            self.positions,
            100.0 * same,
            100.0 * perplexity,
            (-self.exact / self.followed as f64).exp()
        );
        assert!(kl <= KL && same >= SAME_TOP && perplexity.abs() <= PERPLEXITY, "{name}");
    }
}

fn check_fixture(name: &str) {
    let model = fixture(name);
    let mut errors = Errors::default();
    for (_, golden) in Golden::all(name) {
        errors.compare(&model, &golden.ids("tokens"));
    }
    errors.check(name);
}

#[test]
fn nano() {
    check_fixture("nano");
}

#[test]
fn micro() {
    check_fixture("micro");
}

/// Texts that the demo model writes itself, so that they are what it was made for.
#[test]
fn the_demo_model_on_its_own_texts() {
    let model = Arc::new(Model::open(&repository().join("assets/demo")).unwrap());
    let mut errors = Errors::default();
    for seed in 0..5 {
        let random = &mut Random::new(seed);
        let mut runner = runner_with(&model, 2, None, Precision::Exact);
        let sequence = runner.open().unwrap();
        let mut tokens = vec![random.below(model.geometry.vocab) as u32];
        while tokens.len() < 300 {
            runner.decode(&[(sequence, tokens[tokens.len() - 1])]).unwrap();
            let p = log_probabilities(runner.logits(0));
            let mut left = f64::from(random.unit().abs());
            let next = p.iter().position(|p| {
                left -= p.exp();
                left <= 0.0
            });
            tokens.push(next.unwrap_or(0) as u32);
        }
        errors.compare(&model, &tokens);
    }
    errors.check("demo");
}
