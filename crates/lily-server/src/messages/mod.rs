//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol over the internal job and its events.

mod blocks;
mod conversation;
mod errors;
mod handler;
mod request;
mod stream;
mod wire;

pub(crate) use errors::response as error_response;
pub(crate) use handler::{count_tokens, create};
