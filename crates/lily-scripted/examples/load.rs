//! What the server adds to each token, and how many streams it carries: `load STREAMS TOKENS_PER_SECOND SECONDS`.
//!
//! An engine that does nothing but say "a" at given moments, the real server and text side above it, and clients that note when each
//! "a" arrives, all in one process. The time of a token is from the engine's sending it to the client's having read it: the server, the
//! loopback, and the client's own waking and parsing. Every token has to arrive; one that does not ends the program with status 1.
//! Figures: bench/server/README.md.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lily_protocol::{
    Engine, Event, EventSender, FinishReason, Generation, GenerationRequest, Limits, Load, SubmitError,
    Token, Usage, generation,
};
use lily_scripted::builtin_text;
use lily_server::{ServerConfig, Service, bind};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const CONTEXT: usize = 1 << 20;

/// Says `count` tokens to each request, one each `period` from a moment that each request has for itself.
struct Metronome {
    id: u32,
    vocabulary: usize,
    start: Instant,
    period: Duration,
    count: usize,
    streams: usize,
    /// Requests, to the thread that speaks.
    asked: std::sync::mpsc::Sender<EventSender>,
}

impl Metronome {
    /// When stream `stream` gets token `token`: streams are spread over a period.
    fn moment(start: Instant, period: Duration, streams: usize, stream: usize, token: usize) -> Instant {
        start + period * token as u32 + period * stream as u32 / streams as u32
    }
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
        self.asked.send(sender).map_err(|_| SubmitError::ShuttingDown)?;
        Ok(reader)
    }
}

/// The thread that speaks. Sleeping is late by tens of microseconds, which are not the server's: moments are those of sending.
fn speak(
    metronome: &Metronome,
    asked: &std::sync::mpsc::Receiver<EventSender>,
) -> anyhow::Result<Vec<Vec<Instant>>> {
    let streams: Vec<EventSender> = asked.iter().take(metronome.streams).collect();
    let mut sent = vec![Vec::with_capacity(metronome.count); streams.len()];
    for token in 0..metronome.count {
        for (stream, sender) in streams.iter().enumerate() {
            let Metronome { start, period, streams, .. } = *metronome;
            let moment = Metronome::moment(start, period, streams, stream, token);
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            ensure!(!sender.cancelled(), "stream {stream} was dropped at token {token}");
            sent[stream].push(Instant::now());
            sender.send(Event::Tokens(vec![Token { id: metronome.id, logprobs: None }]));
        }
    }
    for sender in streams {
        let usage = Usage { completion_tokens: metronome.count, ..Usage::default() };
        sender.send(Event::Finished { reason: FinishReason::Length, usage });
    }
    Ok(sent)
}

/// One client: when each token arrived. Its number is its place among the requests only if they are sent one after the other, so
/// `ready` tells when the head is there.
async fn listen(
    address: std::net::SocketAddr,
    ready: tokio::sync::oneshot::Sender<()>,
) -> anyhow::Result<Vec<Instant>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let body =
        r#"{"messages": [{"role": "user", "content": "hi"}], "stream": true, "enable_thinking": false}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut first = [0; 12];
    stream.read_exact(&mut first).await?;
    ensure!(&first == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&first));
    let _ = ready.send(());
    let (mut lines, mut arrived) = (BufReader::new(stream).lines(), Vec::new());
    while let Some(line) = lines.next_line().await? {
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Ok(arrived);
        }
        let event: Value = serde_json::from_str(data)?;
        let text = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        arrived.extend(std::iter::repeat_n(Instant::now(), text.len()));
    }
    bail!("a stream broke off after {} tokens", arrived.len())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let &[streams, rate, seconds] = arguments.as_slice() else {
        bail!("wanted: STREAMS TOKENS_PER_SECOND SECONDS")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let text = Arc::new(builtin_text()?);
    let tokenizer = text.tokenizer();
    let (asked, requests) = std::sync::mpsc::channel();
    let id = tokenizer.byte_token(b'a').context("the vocabulary has no a")?;
    let (streams, count) = (streams as usize, (rate * seconds) as usize);
    let start = Instant::now() + Duration::from_secs(1) + Duration::from_millis(5) * streams as u32;
    let period = Duration::from_secs_f64(1.0 / rate);
    let metronome =
        |asked| Metronome { id, vocabulary: tokenizer.size(), start, period, count, streams, asked };
    let (engine, script) = (metronome(asked.clone()), metronome(asked));
    let speaking = std::thread::spawn(move || speak(&script, &requests));
    let before = processor_seconds();
    let arrived = runtime.block_on(async {
        let config = ServerConfig { port: 0, max_connections: 4096, ..ServerConfig::default() };
        let server = bind(config).await?;
        let address = server.address().context("no port")?;
        server.handle().ready(Service::new(Arc::new(engine), text.clone(), "a"));
        tokio::spawn(server.serve(axum::Router::new()));
        let mut clients = Vec::new();
        for _ in 0..streams {
            let (ready, is_ready) = tokio::sync::oneshot::channel();
            clients.push(tokio::spawn(listen(address, ready)));
            let _ = is_ready.await;
        }
        let mut arrived = Vec::new();
        for client in clients {
            arrived.push(client.await??);
        }
        anyhow::Ok(arrived)
    })?;
    let sent = speaking.join().map_err(|_| anyhow::anyhow!("the engine panicked"))??;
    report(&sent, &arrived, processor_seconds() - before)
}

fn report(sent: &[Vec<Instant>], arrived: &[Vec<Instant>], processor: f64) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for (stream, (sent, arrived)) in sent.iter().zip(arrived).enumerate() {
        ensure!(
            sent.len() == arrived.len(),
            "stream {stream}: {} sent, {} arrived",
            sent.len(),
            arrived.len()
        );
        times.extend(sent.iter().zip(arrived).map(|(sent, arrived)| (*arrived - *sent).as_secs_f64() * 1e6));
    }
    ensure!(!times.is_empty(), "nothing was sent");
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{} streams, {} tokens, none lost; microseconds a token: median {:.0}, 90% {:.0}, 99% {:.0}, most {:.0}; processor time a token, \
         client and engine included: {:.1}",
        sent.len(),
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        processor * 1e6 / times.len() as f64
    );
    Ok(())
}

/// Of this process, on Linux; 0 elsewhere.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(") ").next().unwrap_or("").split(' ').filter_map(|field| field.parse().ok()).collect();
    // Fields 14 and 15 of the whole line, in hundredths of a second; the state before them is no number.
    fields.get(10).zip(fields.get(11)).map_or(0.0, |(user, system)| (user + system) / 100.0)
}
