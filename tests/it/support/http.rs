//! A small HTTP/1.1 server on port 0 that says exactly what a test wants, cut connections and silence included.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// First byte and last byte of the range that was asked for.
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let (start, end) = self
            .header("Range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        Some((start.parse().unwrap(), end.parse().ok()))
    }
}

/// What to answer.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    sends: usize,
    silence: Duration,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            sends: body.len(),
            body,
            silence: Duration::ZERO,
        }
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Sends only the first `bytes` of the body, then closes the connection.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.sends = self.sends.min(bytes);
        self
    }

    /// Keeps the connection open and silent for a while before closing it.
    pub fn then_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// `content` as a server that understands ranges answers it.
    pub fn ranged(asked: &Asked, content: &[u8]) -> Self {
        match asked.range() {
            None => Self::new(200, content),
            Some((start, _)) if start >= content.len() => Self::new(416, ""),
            Some((start, end)) => {
                let end = end.map_or(content.len(), |end| content.len().min(end + 1));
                Self::new(206, &content[start..end]).header(
                    "Content-Range",
                    format!("bytes {start}-{}/{}", end - 1, content.len()),
                )
            }
        }
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        write!(
            stream,
            "HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.status,
            self.body.len()
        )?;
        for (name, value) in &self.headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        stream.write_all(b"\r\n")?;
        stream.write_all(&self.body[..self.sends])?;
        stream.flush()
    }
}

/// A running server.
pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Answers every request by `reply`, one connection each.
    pub fn start(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, reply) = (Arc::clone(&asked), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, reply) = (Arc::clone(&log), Arc::clone(&reply));
                std::thread::spawn(move || serve(stream, &log, &*reply));
            }
        });
        Self { url, asked }
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The requests for paths that end with `suffix`.
    pub fn asked_for(&self, suffix: &str) -> Vec<Asked> {
        self.asked()
            .into_iter()
            .filter(|asked| asked.path.ends_with(suffix))
            .collect()
    }
}

fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Asked>>,
    reply: &(dyn Fn(&Asked) -> Reply + Send + Sync),
) {
    let Some(asked) = read_request(&stream) else {
        return;
    };
    log.lock().unwrap().push(asked.clone());
    let reply = reply(&asked);
    // The client may have gone; that is its business.
    let _ = reply.send(&mut stream);
    std::thread::sleep(reply.silence);
    let _ = stream.shutdown(Shutdown::Both);
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    Some(Asked { path, headers })
}
