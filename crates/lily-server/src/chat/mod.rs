//! `POST /v1/chat/completions`: OpenAI's chat protocol over the internal [`Job`](crate::job::Job) and its events.

mod handler;
pub(crate) mod request;
mod stream;
pub(crate) mod wire;

pub(crate) use handler::complete;
