//! A registry with one image, which it hands out slowly: for what becomes of a pod meanwhile.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::error::{TestbedError, at};
use crate::image::{Image, digest};

/// Its address on the machine of each node that has one.
pub const REGISTRY: &str = "127.0.0.1:5000";
const MANIFEST: &str = "manifest.json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const PAUSE: Duration = Duration::from_millis(100);

/// Writes an image as a registry has it.
pub(crate) fn write(image: &Image, folder: &Path) -> Result<(), TestbedError> {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let (configuration, layer) = image.parts()?;
    let part = |bytes: &[u8], kind: &str| {
        let name = digest(bytes);
        fs::write(folder.join(&name), bytes).map_err(at(folder))?;
        let media_type = format!("application/vnd.oci.image.{kind}");
        Ok::<_, TestbedError>(json!({"mediaType": media_type, "digest": format!("sha256:{name}"), "size": bytes.len()}))
    };
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
        "config": part(&configuration, "config.v1+json")?, "layers": [part(&layer, "layer.v1.tar")?],
    });
    fs::write(folder.join(MANIFEST), manifest.to_string()).map_err(at(folder))
}

/// Hands out what is in a folder, each part in so many seconds, until this process is killed.
///
/// # Errors
///
/// If nobody can listen there.
pub fn serve(folder: &Path, seconds: u32) -> io::Result<()> {
    for stream in TcpListener::bind(REGISTRY)?.incoming() {
        let (stream, folder) = (stream?, folder.to_owned());
        // Who hangs up has what it wants, or asks again.
        thread::spawn(move || answer(&stream, &folder, seconds));
    }
    Ok(())
}

fn answer(mut stream: &TcpStream, folder: &Path, seconds: u32) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let (method, path) = request.split_once(' ').unwrap_or_default();
    let path = path.split(' ').next().unwrap_or_default();
    let (body, kind) = match path.rsplit_once('/') {
        Some((before, _)) if before.ends_with("/manifests") => (fs::read(folder.join(MANIFEST)).ok(), MANIFEST_TYPE),
        Some((_, blob)) if blob.starts_with("sha256:") && blob[7..].bytes().all(|it| it.is_ascii_alphanumeric()) => {
            (fs::read(folder.join(&blob[7..])).ok(), "application/octet-stream")
        }
        Some(_) | None => (path.starts_with("/v2").then(Vec::new), "text/plain"),
    };
    let Some(body) = body else { return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Docker-Content-Digest: sha256:{}\r\n\r\n",
        body.len(),
        digest(&body)
    )?;
    if method == "HEAD" {
        return Ok(());
    }
    for chunk in body.chunks((body.len() / (10 * seconds as usize)).max(64 * 1024)) {
        stream.write_all(chunk)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}
