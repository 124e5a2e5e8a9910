//! The real server and text side over an engine that reads its answers from a script.
//!
//! Everything a client can see of Lily's protocols is the server's and the text side's doing, so every protocol case is
//! a fast test here: no checkpoint, no device, the same answer each time. It also proves the wall: this crate holds an
//! [`lily_protocol::Engine`] without knowing a tensor. A test binary, not shipped.
//!
//! The format of scripts is described at [`Script`].

#![forbid(unsafe_code)]

mod builtin;
mod debug;
mod engine;
mod script;

pub use builtin::builtin_text;
pub use debug::{Record, RecordedSampling, State, router};
pub use engine::{EngineOptions, ScriptedEngine};
pub use script::{Finish, Line, Piece, Script, ScriptError};
