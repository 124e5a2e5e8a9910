//! What says a token at given moments: to the server as an engine does, or without a server, straight into a client's socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lily_protocol::{
    Engine, Event, EventSender, FinishReason, Generation, GenerationRequest, Limits, Load, SubmitError,
    Token, Usage, generation,
};

const CONTEXT: usize = 1 << 20;

/// `count` tokens to each of `streams` clients, one each `period`, from a moment that each client has for itself.
#[derive(Clone, Copy)]
pub(crate) struct Beat {
    pub(crate) streams: usize,
    pub(crate) period: Duration,
    pub(crate) count: usize,
    pub(crate) start: Instant,
}

impl Beat {
    /// When stream `stream` gets token `token`: streams are spread over a period.
    fn moment(&self, stream: usize, token: usize) -> Instant {
        self.start + self.period * token as u32 + self.period * stream as u32 / self.streams as u32
    }
}

/// Where tokens of one stream go.
enum Mouth {
    Engine {
        sender: EventSender,
        id: u32,
    },
    /// A socket, and a piece of a stream as the server words it.
    Bare {
        socket: TcpStream,
        piece: Vec<u8>,
    },
}

impl Mouth {
    fn say(&mut self) -> anyhow::Result<()> {
        match self {
            Mouth::Engine { sender, id } => {
                ensure!(!sender.cancelled(), "a stream was dropped");
                sender.send(Event::Tokens(vec![Token { id: *id, logprobs: None }]));
            }
            Mouth::Bare { socket, piece } => socket.write_all(piece)?,
        }
        Ok(())
    }

    fn end(self, count: usize) -> anyhow::Result<()> {
        match self {
            Mouth::Engine { sender, .. } => {
                let usage = Usage { completion_tokens: count, ..Usage::default() };
                sender.send(Event::Finished { reason: FinishReason::Length, usage });
            }
            Mouth::Bare { mut socket, .. } => socket.write_all(&chunk("data: [DONE]\n\n"))?,
        }
        Ok(())
    }
}

/// A chunk of a body, as HTTP/1.1 frames it.
fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// The engine that the server asks; its mouths go to a thread that speaks.
pub(crate) struct Metronome {
    id: u32,
    vocabulary: usize,
    asked: Sender<Mouth>,
}

impl Engine for Metronome {
    fn limits(&self) -> Limits {
        Limits { context: CONTEXT, model_context: CONTEXT, vocabulary: self.vocabulary }
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn submit(&self, _: GenerationRequest) -> Result<Generation, SubmitError> {
        let (sender, reader) = generation();
        let mouth = Mouth::Engine { sender, id: self.id };
        self.asked.send(mouth).map_err(|_| SubmitError::ShuttingDown)?;
        Ok(reader)
    }
}

/// The thread that speaks, and when it said each token of each stream.
pub(crate) type Speaking = JoinHandle<anyhow::Result<Vec<Vec<Instant>>>>;

/// An engine for the server.
pub(crate) fn engine(beat: Beat, id: u32, vocabulary: usize) -> (Metronome, Speaking) {
    let (asked, mouths) = channel();
    (Metronome { id, vocabulary, asked }, std::thread::spawn(move || speak(beat, &mouths)))
}

/// A port without a server behind it: every request is answered by the thread that speaks.
pub(crate) fn bare(beat: Beat, model: &str) -> anyhow::Result<(SocketAddr, Speaking)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let piece = chunk(&format!(
        "data: {{\"id\":\"chatcmpl-000000000000000000000000\",\"object\":\"chat.completion.chunk\",\"created\":1764500000,\"model\":\"{model}\",\
         \"system_fingerprint\":\"lily-0.1.0\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    ));
    let speaking = std::thread::spawn(move || {
        let (asked, mouths) = channel();
        for _ in 0..beat.streams {
            let socket = listener.accept()?.0;
            asked.send(Mouth::Bare { socket: answer(socket)?, piece: piece.clone() })?;
        }
        speak(beat, &mouths)
    });
    Ok((address, speaking))
}

/// Reads a request, and sends the head of the answer.
fn answer(mut socket: TcpStream) -> anyhow::Result<TcpStream> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let (mut line, mut length) = (String::new(), None);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            bail!("a request broke off");
        }
        match line.trim_end() {
            "" => break,
            head => {
                if let Some(value) = head.strip_prefix("Content-Length: ") {
                    length = Some(value.parse::<usize>()?);
                }
            }
        }
    }
    reader.read_exact(&mut vec![0; length.context("a request without a length")?])?;
    socket.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n",
    )?;
    Ok(socket)
}

/// Sleeping is late by tens of microseconds, which are not the server's: moments are those of sending.
fn speak(beat: Beat, mouths: &Receiver<Mouth>) -> anyhow::Result<Vec<Vec<Instant>>> {
    let mut mouths: Vec<Mouth> = mouths.iter().take(beat.streams).collect();
    let mut sent = vec![Vec::with_capacity(beat.count); mouths.len()];
    for token in 0..beat.count {
        for (stream, mouth) in mouths.iter_mut().enumerate() {
            std::thread::sleep(beat.moment(stream, token).saturating_duration_since(Instant::now()));
            sent[stream].push(Instant::now());
            mouth.say().with_context(|| format!("token {token} of stream {stream}"))?;
        }
    }
    mouths.into_iter().try_for_each(|mouth| mouth.end(beat.count))?;
    Ok(sent)
}
