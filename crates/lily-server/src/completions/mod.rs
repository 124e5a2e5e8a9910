//! `POST /v1/completions`: plain text goes on, with OpenAI's older protocol.

mod handler;
mod request;
mod wire;

pub(crate) use handler::complete;
pub(crate) use request::token_ids;
