//! The daemon behind real sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pollux_backend::ReplicaOrder;
use pollux_policy::PolicySettings;
use pollux_server::http::{HttpSettings, TlsFiles};
use pollux_server::{Action, Daemon, ServerError, ServerSettings};
use pollux_worker::{Connection, Termination, Token, Worker};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto, pki_types};

use crate::world::{PATIENCE, World, eventually, request, settings};

fn start(state_dir: &Path, http: &HttpSettings) -> Result<Daemon, ServerError> {
    let world = World::new(&[("a", 1)]);
    Daemon::start(settings(state_dir, PolicySettings::Fifo), http, world.open())
}

fn plain() -> HttpSettings {
    HttpSettings::new("127.0.0.1:0".parse().unwrap())
}

fn address(url: &str) -> SocketAddr {
    url.split_once("://").unwrap().1.parse().unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Everything until the other end hangs up.
fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // A connection that was reset has said all it had to.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn end(daemon: Daemon) {
    daemon.stopper().stop();
    daemon.wait().unwrap();
}

/// What the state folder tells those who may read it.
fn found(state_dir: &Path) -> (String, String) {
    let server: serde_json::Value = serde_json::from_slice(&fs::read(state_dir.join("server.json")).unwrap()).unwrap();
    let token = fs::read_to_string(state_dir.join("token")).unwrap();
    (server["url"].as_str().unwrap().to_owned(), token.trim().to_owned())
}

#[test]
fn a_daemon_is_found_by_its_state_folder_and_leaves_it_tidy() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), &plain()).unwrap();
    let (url, token) = found(folder.path());
    assert_eq!(url, daemon.url());
    for file in ["token", "server.json"] {
        assert_eq!(folder.path().join(file).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    let ask = |address: SocketAddr, token: &str| {
        let mut stream = connect(address);
        let head = format!("GET /v1/nodes HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        write!(stream, "{head}Authorization: Bearer {token}\r\n\r\n").unwrap();
        read_all(&mut stream)
    };
    assert!(ask(address(&url), &token).starts_with("HTTP/1.1 200 "));
    assert!(ask(address(&url), "guess").starts_with("HTTP/1.1 401 "));
    // A long poll, a stream and a connection that says nothing do not hold up the end.
    let mut stream = connect(address(&url));
    write!(
        stream,
        "GET /v1/events/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
        address(&url)
    )
    .unwrap();
    let mut begun = String::new();
    while !begun.contains("retry: 1000") {
        let mut bytes = [0; 512];
        let read = stream.read(&mut bytes).unwrap();
        begun += std::str::from_utf8(&bytes[..read]).unwrap();
    }
    let silent = connect(address(&url));
    end(daemon);
    read_all(&mut stream);
    drop(silent);
    assert!(!folder.path().join("server.json").exists());

    let daemon = start(folder.path(), &plain()).unwrap();
    let (url, same) = found(folder.path());
    assert_eq!(same, token, "the token stays");
    assert!(ask(address(&url), &token).starts_with("HTTP/1.1 200 "));
    end(daemon);
    fs::remove_file(folder.path().join("token")).unwrap();
    let daemon = start(folder.path(), &plain()).unwrap();
    let (url, new) = found(folder.path());
    assert!(new != token && ask(address(&url), &new).starts_with("HTTP/1.1 200 "));
    assert!(ask(address(&url), &token).starts_with("HTTP/1.1 401 "), "who deletes the file takes the token back");
    end(daemon);
}

#[test]
fn hundreds_of_workers_wait_for_their_assignment_and_all_hear_of_a_new_one() {
    const WORKERS: usize = 400;
    let (folder, world) = (tempfile::tempdir().unwrap(), World::new(&[("a", 1)]));
    let daemon = Daemon::start(settings(folder.path(), PolicySettings::Fifo), &plain(), world.open()).unwrap();
    let (url, token) = found(folder.path());
    let (address, job) = (address(&url), daemon.handle().submit(request("job", 1)).wait().unwrap());
    let assignment = eventually("the launch", || daemon.handle().assignment(job));
    let generation = assignment.borrow().generation;
    let ask = |path: &str| {
        let mut stream = connect(address);
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        write!(stream, "{head}Authorization: Bearer {token}\r\n\r\n").unwrap();
        stream
    };
    let path = format!("/v1/jobs/{}/assignment?after={generation}&wait_s=60", job.0);
    let mut workers: Vec<TcpStream> = (0..WORKERS).map(|_| ask(&path)).collect();
    let waiting = format!("pollux_waiting_workers {WORKERS}\n");
    eventually("that all wait", || read_all(&mut ask("/metrics")).contains(&waiting).then_some(()));
    daemon.handle().act(job, Action::Pause).wait().unwrap();
    for worker in &mut workers {
        let answer = read_all(worker);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"state\":\"stop\""), "{answer}");
    }
    end(daemon);
}

#[test]
fn a_huge_body_is_refused_before_it_is_sent_and_a_slow_client_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), &plain()).unwrap();
    let (url, token) = found(folder.path());
    let address = address(&url);
    let head = |length: &str| {
        format!(
            "POST /v1/jobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{length}\r\n\r\n"
        )
    };
    let mut slow = connect(address);
    slow.write_all(b"GET /v1/nodes HT").unwrap();
    let mut slow_body = connect(address);
    slow_body.write_all(head("Connection: close\r\nContent-Length: 100").as_bytes()).unwrap();

    let mut declared = connect(address);
    declared.write_all(head("Content-Length: 1073741824").as_bytes()).unwrap();
    let answer = read_all(&mut declared);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("expected fewer"), "{answer}");

    // One that does not say how long it is hears it, too, though it has more to say.
    let mut endless = connect(address);
    endless.write_all(head("Transfer-Encoding: chunked").as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..64 {
        endless.write_all(chunk.as_bytes()).unwrap();
    }
    let answer = read_all(&mut endless);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("expected fewer"), "{answer}");

    slow_body.write_all(&[b' '; 100]).unwrap();
    assert!(read_all(&mut slow_body).starts_with("HTTP/1.1 400 "));
    end(daemon);
    assert_eq!(read_all(&mut slow), "");
}

#[test]
fn with_tls_strangers_get_a_certificate_and_workers_a_door_of_their_own() {
    let (folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tls = TlsFiles { certificate: files.path().join("cert.pem"), key: files.path().join("key.pem") };
    let made = rcgen::generate_simple_self_signed(["gpu.example".to_owned()]).unwrap();
    fs::write(&tls.certificate, made.cert.pem()).unwrap();
    fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let http = HttpSettings { tls: Some(tls.clone()), hosts: vec!["gpu.example".to_owned()], ..plain() };
    let daemon = start(folder.path(), &http).unwrap();
    let (local, token) = found(folder.path());
    assert!(daemon.url().starts_with("https://127.0.0.1:") && local.starts_with("http://127.0.0.1:"));

    let mut roots = RootCertStore::empty();
    roots.add(pki_types::CertificateDer::from_pem_file(&tls.certificate).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let ask = |host: &str, extra: &str| {
        let name = ServerName::try_from("gpu.example").unwrap();
        let connection = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
        let mut stream = StreamOwned::new(connection, connect(address(daemon.url())));
        write!(stream, "GET /v1/nodes HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n").unwrap();
        write!(stream, "{extra}Connection: close\r\n\r\n").unwrap();
        read_all(&mut stream)
    };
    assert!(ask("gpu.example", "").starts_with("HTTP/1.1 200 "));
    assert!(ask("evil.example", "").starts_with("HTTP/1.1 403 "));
    assert!(ask("gpu.example", "Origin: http://gpu.example\r\n").starts_with("HTTP/1.1 403 "), "not over TLS");
    let mut plain = connect(address(daemon.url()));
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(!read_all(&mut plain).starts_with("HTTP"));
    end(daemon);

    let daemon = start(folder.path(), &http).unwrap();
    assert_eq!(found(folder.path()).0, local, "workers that outlived the daemon find it where it was");
    end(daemon);
    fs::write(&tls.key, "no key").unwrap();
    let error = start(folder.path(), &http).unwrap_err().to_string();
    assert!(error.contains("key.pem: "), "{error}");
}

/// A certificate for this machine by an authority of its own, and that authority.
fn certified(folder: &Path) -> (TlsFiles, PathBuf) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let tls = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    let file = folder.join("ca.pem");
    fs::write(&tls.certificate, certificate.pem()).unwrap();
    fs::write(&tls.key, key.serialize_pem()).unwrap();
    fs::write(&file, authority_pem).unwrap();
    (tls, file)
}

/// Settings of a server with these files, and where it is reached.
fn secured(tls: &TlsFiles) -> (HttpSettings, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = SocketAddr::from(([127, 0, 0, 1], port));
    let http =
        HttpSettings { tls: Some(tls.clone()), hosts: vec!["localhost".to_owned()], ..HttpSettings::new(listen) };
    (http, format!("https://localhost:{port}"))
}

/// What a worker is told that trusts these authorities.
fn connection(url: &str, order: &ReplicaOrder, authority: &Path) -> Connection {
    Connection {
        url: url.to_owned(),
        job: order.job.0.to_string(),
        replica: order.replica.0,
        token: Token::Given(order.secrets["POLLUX_TOKEN"].clone()),
        generation: 1,
        host: "127.0.0.1".to_owned(),
        authority: Some(authority.to_owned()),
    }
}

#[test]
fn workers_reach_a_scheduler_by_tls_with_a_private_authority_and_nobody_else() {
    let files = tempfile::tempdir().unwrap();
    let (tls, authority) = certified(files.path());
    let folder = tempfile::tempdir().unwrap();
    let (http, url) = secured(&tls);
    let world = World::new(&[("a", 1)]);
    let settings = |url: &str| ServerSettings {
        worker_url: Some(url.to_owned()),
        worker_authority: Some(authority.clone()),
        ..settings(folder.path(), PolicySettings::Fifo)
    };
    let insecure = Daemon::start(settings("http://gpu.example:7878"), &http, world.open()).unwrap_err().to_string();
    assert!(insecure.starts_with("worker URL http://gpu.example:7878: expected https://"), "{insecure}");
    let daemon = Daemon::start(settings(&url), &http, world.open()).unwrap();
    let job = daemon.handle().submit(request("resnet", 1)).wait().unwrap();
    let order = eventually("the launch", || world.running_for(job).into_iter().next());
    assert_eq!(order.environment["POLLUX_URL"], url);
    assert_eq!(order.environment["POLLUX_CA_FILE"], authority.to_str().unwrap());
    let connection = |authority: &Path| connection(&url, &order, authority);
    let worker = Worker::start(connection(&authority), Termination::default()).unwrap();
    let heard = eventually("the assignment", || worker.assignment());
    assert_eq!(heard.replicas[0].replica, order.replica.0);
    worker.publish_rendezvous(1, 4711);
    let published = || daemon.handle().assignment(job)?.borrow().endpoint().map(|endpoint| endpoint.port);
    assert_eq!(eventually("the rendezvous", published), 4711);

    let others = tempfile::tempdir().unwrap();
    let (_, stranger) = certified(others.path());
    let misled = Worker::start(connection(&stranger), Termination::default()).unwrap();
    let error = eventually("the refusal", || misled.answered(PATIENCE).err()).to_string();
    let expected = format!("{url} shows a certificate that cannot be trusted (");
    assert!(error.starts_with(&expected) && error.lines().count() == 1, "{error}");
    assert!(misled.assignment().is_none());
    let missing =
        Worker::start(connection(Path::new("/no/such/file")), Termination::default()).unwrap_err().to_string();
    assert!(missing.starts_with("POLLUX_CA_FILE is \"/no/such/file\" ("), "{missing}");
    end(daemon);
}

#[test]
fn a_certificate_of_a_new_authority_counts_without_a_restart_and_workers_trust_what_their_file_holds() {
    let files = tempfile::tempdir().unwrap();
    let (tls, authority) = certified(files.path());
    let folder = tempfile::tempdir().unwrap();
    let (http, url) = secured(&tls);
    let world = World::new(&[("a", 1)]);
    let settings = ServerSettings { worker_url: Some(url.clone()), ..settings(folder.path(), PolicySettings::Fifo) };
    let daemon = Daemon::start(settings, &http, world.open()).unwrap();
    let job = daemon.handle().submit(request("resnet", 1)).wait().unwrap();
    let order = eventually("the launch", || world.running_for(job).into_iter().next());
    let worker = || Worker::start(connection(&url, &order, &authority), Termination::default()).unwrap();
    let early = worker();
    eventually("the assignment", || early.assignment());
    let (old, others) = (fs::read_to_string(&authority).unwrap(), tempfile::tempdir().unwrap());
    let (renewed, new) = certified(others.path());
    for (from, to) in [(renewed.certificate, tls.certificate), (renewed.key, tls.key)] {
        fs::copy(from, to).unwrap();
    }
    let late = worker();
    eventually("the refusal", || late.answered(PATIENCE).err());
    assert!(late.assignment().is_none(), "its authority does not vouch for the new certificate");
    fs::write(&authority, old + &fs::read_to_string(new).unwrap()).unwrap();
    eventually("the assignment", || late.assignment());
    end(daemon);
}

#[test]
fn what_would_be_open_to_everybody_or_cannot_work_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let wide = HttpSettings { listen: "0.0.0.0:7878".parse().unwrap(), ..plain() };
    let error = start(folder.path(), &wide).unwrap_err().to_string();
    let expected =
        "listening on 0.0.0.0:7878 without TLS is refused: give --tls-cert and --tls-key, or listen on 127.0.0.1";
    assert_eq!(error, expected);
    let daemon = start(folder.path(), &plain()).unwrap();
    let taken = HttpSettings { listen: address(daemon.url()), ..plain() };
    let other = tempfile::tempdir().unwrap();
    assert!(start(other.path(), &taken).unwrap_err().to_string().starts_with("cannot listen on 127.0.0.1:"));
    assert!(!other.path().join("pollux.db").exists());
    end(daemon);
    let oracle = PolicySettings::named("optimus-oracle").unwrap();
    let world = World::new(&[("a", 1)]);
    let error = Daemon::start(settings(folder.path(), oracle), &plain(), world.open()).unwrap_err().to_string();
    assert!(error.starts_with("policy optimus-oracle has to know"), "{error}");
}
