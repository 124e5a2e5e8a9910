//! How the tokens of steps that hand them over are chosen.

use lily_kernels::select::Request;

use crate::DeviceError;
use crate::device::Batch;
use crate::plan::{Plan, Tail};

/// How the next tokens of a decode step are chosen (`lily_kernels::select`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// One for each row, as it is before the first step.
    pub requests: Vec<Request>,
    /// Entries of the pools of counts, biases and masks, as in the plan. A device keeps what is in them from one run of steps to the
    /// next, unless there are more of them than ever before.
    pub entries: usize,
    /// What is written into the pools before the first step.
    pub fresh: Vec<Fresh>,
}

/// New contents of an entry; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fresh {
    /// Its place in the pools.
    pub entry: usize,
    /// `[vocab]`.
    pub counts: Option<Vec<u32>>,
    /// `[vocab]`.
    pub bias: Option<Vec<f32>>,
    /// `[ceil(vocab / 32)]`.
    pub mask: Option<Vec<u32>>,
}

impl Choices {
    /// Whether steps of this plan can choose so.
    pub fn check(&self, plan: &Plan, batch: &Batch<'_>, vocab: usize) -> Result<(), DeviceError> {
        let wrong = |what: &str| Err(DeviceError::Unknown(what.into()));
        let (rows, entries) = match plan.tail {
            Tail::Select { entries } if plan.rows == 1 => (plan.slots, entries),
            _ => return wrong("the plan does not choose a token for each sequence"),
        };
        let pooled = |r: &Request| r.has_counts || r.has_bias || r.has_mask;
        let known =
            |r: &Request| (!pooled(r) || (r.entry as usize) < entries) && r.vocabulary as usize <= vocab;
        let whole = |fresh: &Fresh| {
            fresh.entry < entries
                && fresh.counts.as_ref().is_none_or(|c| c.len() == vocab)
                && fresh.bias.as_ref().is_none_or(|b| b.len() == vocab)
                && fresh.mask.as_ref().is_none_or(|m| m.len() == vocab.div_ceil(32))
        };
        let fits = self.requests.len() == rows
            && self.entries == entries
            && self.requests.iter().all(known)
            && self.fresh.iter().all(whole)
            && batch.sequences.len() == rows;
        if fits { Ok(()) } else { wrong("requests or entries do not fit the plan") }
    }
}
