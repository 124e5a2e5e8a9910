//! The one internal form of a request: every API family turns its body into a [`Job`], and reads the same events back.

use std::sync::Arc;

use lily_protocol::{GenerationRequest, Sampling, SubmitError};
use lily_text::{OutputOptions, OutputStream, Prompt};

use crate::answer::{Answer, Answers};
use crate::budget::Budget;
use crate::calls::{CallReader, ToolUse};
use crate::errors::ApiError;
use crate::service::Service;

/// A prompt and how to answer it.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    /// The field of the request that the prompt was made of.
    pub(crate) asked: &'static str,
    /// `None`: the rest of the context.
    pub(crate) max_tokens: Option<usize>,
    /// With the seed of the first answer.
    pub(crate) sampling: Sampling,
    /// Alternatives per token; `None`: no log probabilities.
    pub(crate) logprobs: Option<usize>,
    /// The same of the prompt's tokens.
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) ignore_end: bool,
    /// The answer ends before the first of these.
    pub(crate) stop: Vec<String>,
    /// Independent answers, at least 1.
    pub(crate) choices: usize,
    /// Most tokens of reasoning; `None`: as many as the answer may have.
    pub(crate) budget: Option<usize>,
    /// `None`: what looks like a call is text.
    pub(crate) tools: Option<ToolUse>,
    /// No conversation: markers of reasoning are text.
    pub(crate) raw: bool,
}

impl Job {
    /// Hands the work to the engine: all answers, or none.
    pub(crate) fn start(self, service: &Service) -> Result<Answers, ApiError> {
        self.answers(service).map(Answers::new)
    }

    /// The same for several jobs: all answers of the first, then those of the second, and so on.
    pub(crate) fn start_all(jobs: Vec<Job>, service: &Service) -> Result<Answers, ApiError> {
        let mut answers = Vec::new();
        for job in jobs {
            answers.extend(job.answers(service)?);
        }
        Ok(Answers::new(answers))
    }

    fn answers(self, service: &Service) -> Result<Vec<Answer>, ApiError> {
        let text: Arc<str> = self.prompt.text.as_str().into();
        let mut answers = Vec::with_capacity(self.choices);
        for choice in 0..self.choices {
            let mut sampling = self.sampling.clone();
            sampling.seed = choice_seed(self.sampling.seed, choice as u64);
            let request = GenerationRequest {
                prompt: self.prompt.tokens.clone(),
                text: Some(text.clone()),
                max_tokens: self.max_tokens,
                sampling,
                logprobs: self.logprobs,
                prompt_logprobs: self.prompt_logprobs,
                ignore_end: self.ignore_end,
            };
            // What it is asked for once more, behind a spent budget, it has told already.
            let again = GenerationRequest { prompt_logprobs: None, ..request.clone() };
            let budget = self.budget.map(|tokens| Budget::new(service.engine.clone(), again, tokens));
            let generation = service.engine.submit(request).map_err(|error| self.refused(error))?;
            let options = OutputOptions {
                starts_in_reasoning: self.prompt.starts_in_reasoning,
                stop: self.stop.clone(),
                raw: self.raw,
                ..OutputOptions::default()
            };
            let output = OutputStream::new(&service.text, options);
            answers.push(Answer::new(
                generation,
                output,
                CallReader::new(self.tools.clone()),
                budget,
                service,
                self.prompt.tokens.clone(),
                self.logprobs.is_some(),
            ));
        }
        Ok(answers)
    }
}

impl Job {
    /// A prompt that is refused is named as the client knows it.
    fn refused(&self, error: SubmitError) -> ApiError {
        let of_prompt = matches!(error, SubmitError::ContextExceeded { .. } | SubmitError::EmptyPrompt);
        let error = ApiError::from(error);
        if of_prompt { error.at(self.asked) } else { error }
    }
}

/// The first answer has the request's own seed, so that `n: 1` and the first of `n: 2` are the same.
fn choice_seed(seed: u64, choice: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    seed.wrapping_add(choice.wrapping_mul(GOLDEN))
}
