//! `POST /v1/chat/completions`: OpenAI's chat protocol over the internal [`Job`](crate::job::Job) and its events.

mod handler;
mod request;
mod stream;
mod tools;
mod wire;

pub(crate) use handler::complete;
