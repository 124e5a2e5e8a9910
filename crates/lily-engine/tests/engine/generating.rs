//! Events, counts and ends of a single request.

use lily_engine::Scratch;
use lily_protocol::{Engine, Event, FinishReason, GenerationRequest, Sampling, SubmitError};

use crate::fake::*;
use crate::helpers::*;

#[test]
fn an_answer_has_progress_then_tokens_then_the_end() {
    let (engine, _) = engine(config());
    let answer = check(&engine, &request(text(10, 40), 5));
    assert_eq!(answer.progress, [(0, 0), (16, 0), (32, 0), (40, 0)]);
    let usage = answer.usage();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (40, 0, 5));
    assert!(usage.queue_seconds >= 0.0 && usage.prefill_seconds > 0.0 && usage.decode_seconds > 0.0);
}

#[test]
fn end_tokens_are_counted_and_not_sent() {
    let (engine, _) = engine(config());
    let mut ended = 0;
    for seed in 0..20 {
        let sampling =
            Sampling { temperature: 1.0, seed, logit_bias: vec![(END, 4.0)], ..Sampling::greedy() };
        let request = GenerationRequest { sampling, ignore_end: false, ..request(text(11, 9), 50) };
        let answer = check(&engine, &request);
        assert!(!answer.tokens.contains(&END));
        let stopped = matches!(answer.end, Some(Ok((FinishReason::Stop, _))));
        ended += usize::from(stopped);
        assert_eq!(answer.usage().completion_tokens, answer.tokens.len() + usize::from(stopped));
    }
    assert!(ended > 10, "{ended} of 20");
}

#[test]
fn ignore_end_never_chooses_an_end_token() {
    let (engine, _) = engine(config());
    let sampling = Sampling { temperature: 1.0, logit_bias: vec![(END, 50.0)], ..Sampling::greedy() };
    let answer = check(&engine, &GenerationRequest { sampling, ..request(text(12, 9), 40) });
    assert_eq!(answer.tokens.len(), 40);
}

#[test]
fn the_context_ends_an_answer() {
    let (engine, _) = engine(config());
    for max_tokens in [None, Some(usize::MAX)] {
        let answer = check(&engine, &GenerationRequest { max_tokens, ..request(text(13, CONTEXT - 30), 0) });
        assert_eq!(answer.tokens.len(), 30);
    }
    let last = check(&engine, &request(text(13, CONTEXT - 1), 10));
    assert_eq!(last.tokens.len(), 1);
}

#[test]
fn no_tokens_asked_is_a_prefill_alone() {
    let (engine, controls) = engine(config());
    let answer = run(&engine, &request(text(14, 20), 0));
    assert!(answer.tokens.is_empty());
    assert!(matches!(answer.end, Some(Ok((FinishReason::Length, _)))));
    assert_eq!(controls.prefilled_tokens(), 20);
    assert_eq!(run(&engine, &request(text(14, 20), 3)).usage().cached_tokens, 16);
}

#[test]
fn log_probabilities_come_with_each_token() {
    let (engine, _) = engine(config());
    let asked = GenerationRequest { logprobs: Some(3), ..request(text(15, 20), 4) };
    let mut generation = engine.submit(asked).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_blocking() {
        if let Event::Tokens(more) = event {
            tokens.extend(more);
        }
    }
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let logprobs = token.logprobs.unwrap();
        assert_eq!(logprobs.top.len(), 3);
        // Greedy: the chosen one is the first, unless that was the banned end token.
        assert!(logprobs.top.iter().take(2).any(|(id, p)| *id == token.id && *p == logprobs.chosen));
        assert!(logprobs.top.is_sorted_by(|a, b| a.1 >= b.1) && logprobs.chosen < 0.0);
    }
}

#[test]
fn a_prompt_has_log_probabilities_too_on_request() {
    let (engine, controls) = engine(config());
    let prompt = text(16, 50);
    let plain = request(prompt.clone(), 4);
    run(&engine, &plain);
    let before = controls.prefilled_tokens();
    let answer = run(&engine, &GenerationRequest { prompt_logprobs: Some(2), ..plain.clone() });
    assert_eq!(answer.usage().cached_tokens, 0, "all of it is computed, whatever is kept of it");
    assert_eq!(controls.prefilled_tokens() - before, 50);
    let scores = answer.prompt.unwrap();
    assert_eq!((scores.len(), &scores[0]), (50, &None));
    let (mut hash, mut scratch) = (7, Scratch::default());
    for start in (0..50).step_by(CHUNK) {
        let piece = &prompt[start..(start + CHUNK).min(50)];
        for row in 0..piece.len() {
            let Some(&next) = prompt.get(start + row + 1) else { break };
            let wanted = lily_engine::logprobs(
                &logits(prefilled(hash, &piece[..=row])),
                VOCABULARY,
                next,
                2,
                &mut scratch,
            );
            assert_eq!(scores[start + row + 1].as_ref(), Some(&wanted), "token {}", start + row + 1);
        }
        hash = prefilled(hash, piece);
    }
    assert_eq!(
        answer.tokens[0],
        argmax_but_end(&logits(hash)),
        "the answer goes on from the prompt's last row"
    );
    // Without a token of an answer, and beside others.
    let none = run(&engine, &GenerationRequest { prompt_logprobs: Some(0), ..request(prompt, 0) });
    assert_eq!((none.prompt.unwrap().len(), none.tokens.len()), (50, 0));
    assert!(check(&engine, &plain).prompt.is_none());
}

fn argmax_but_end(logits: &[f32]) -> u32 {
    let real = logits[..VOCABULARY].iter().enumerate().filter(|(id, _)| *id as u32 != END);
    real.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).unwrap().0 as u32
}

#[test]
fn more_alternatives_than_tokens_are_all_tokens() {
    let (engine, _) = engine(config());
    let asked = GenerationRequest { logprobs: Some(usize::MAX), ..request(text(15, 20), 1) };
    let mut generation = engine.submit(asked).unwrap();
    while let Some(event) = generation.next_blocking() {
        if let Event::Tokens(tokens) = event {
            let top = &tokens[0].logprobs.as_ref().unwrap().top;
            assert_eq!(top.len(), VOCABULARY);
            let sum: f64 = top.iter().map(|(_, p)| f64::from(*p).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn what_cannot_be_answered_is_refused_at_once() {
    let (engine, controls) = engine(config());
    assert_eq!(refusal(&engine, request(vec![], 5)), SubmitError::EmptyPrompt);
    let unknown = SubmitError::UnknownToken { id: 100, size: 100 };
    assert_eq!(refusal(&engine, request(vec![5, 100], 5)), unknown);
    let mut biased = request(vec![5], 5);
    biased.sampling.logit_bias = vec![(99, 1.0), (100, 1.0)];
    assert_eq!(refusal(&engine, biased), unknown);
    let exceeded = SubmitError::ContextExceeded { prompt: CONTEXT, context: CONTEXT };
    assert_eq!(refusal(&engine, request(text(10, CONTEXT), 1)), exceeded);
    assert_eq!(controls.calls.lock().unwrap().len(), 0);
    assert_eq!(engine.load().waiting, 0);
}

#[test]
fn meaningless_sampling_fails_with_the_field() {
    let (engine, _) = engine(config());
    let sampling = Sampling { temperature: f32::NAN, ..Sampling::greedy() };
    let answer = run(&engine, &GenerationRequest { sampling, ..request(text(10, 5), 5) });
    assert_eq!(answer.failure(), "temperature is NaN, and must be finite and >= 0");
    check(&engine, &request(text(10, 5), 5));
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    use lily_engine::{EngineConfig, StartError, start};
    let refuse = |change: fn(&mut EngineConfig)| {
        let mut wrong = config();
        change(&mut wrong);
        start(wrong, Box::new(Fake::new(Default::default()))).map(|_| ()).unwrap_err()
    };
    assert!(matches!(refuse(|c| c.chunk = 0), StartError::Chunk { chunk: 0, most: 32 }));
    assert!(matches!(refuse(|c| c.chunk = 33), StartError::Chunk { chunk: 33, most: 32 }));
    assert!(matches!(refuse(|c| c.parallel = 0), StartError::Parallel));
    assert!(matches!(refuse(|c| c.limits.vocabulary = 104), StartError::Vocabulary { .. }));
    assert!(matches!(refuse(|c| c.limits.context = CONTEXT + 1), StartError::Context { .. }));
}
