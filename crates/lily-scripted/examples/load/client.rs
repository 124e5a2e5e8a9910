//! A client that notes when each token of its stream arrives.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot::{Sender, channel};

/// When each token of each stream arrived. Clients connect one after the other: the number of a stream is its place among them.
pub(crate) async fn listen_all(address: SocketAddr, streams: usize) -> anyhow::Result<Vec<Vec<Instant>>> {
    let mut clients = Vec::new();
    for _ in 0..streams {
        let (ready, is_ready) = channel();
        clients.push(tokio::spawn(listen(address, ready)));
        let _ = is_ready.await;
    }
    let mut arrived = Vec::new();
    for client in clients {
        arrived.push(client.await??);
    }
    Ok(arrived)
}

/// One client; `ready` tells when the head is there.
async fn listen(address: SocketAddr, ready: Sender<()>) -> anyhow::Result<Vec<Instant>> {
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
