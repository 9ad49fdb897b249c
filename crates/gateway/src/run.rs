//! A gateway as a process.

use std::sync::Arc;

use base::TraceEvent;
use bucket::{Buckets, Sealer};
use client::Config;
use cluster::message::Failure;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::door::ClusterDoor;
use crate::limits::Limits;
use crate::s3::Shared;
use crate::s3::users::Users;
use crate::s3::wire::Wire;
use crate::server::{Server, listen};
use crate::service::Service;
use crate::tls::{Tls, TlsFiles};

/// What a gateway is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens: `tcp:HOST:PORT`.
    pub listen: Vec<String>,
    /// The pool that has buckets, keys and users.
    pub index_pool: String,
    /// The pool of volumes that has large data. `None`: objects are as large as the index takes them.
    pub data_pool: Option<String>,
    /// Bodies of up to so many bytes lie in the index.
    pub inline_max: u64,
    /// The region that signatures name.
    pub region: String,
    /// Hosts below which a bucket's name may stand.
    pub domains: Vec<String>,
    /// TLS, if connections are encrypted.
    pub tls: Option<TlsFiles>,
    /// How many threads serve connections.
    pub threads: usize,
    /// What clients are allowed.
    pub limits: Limits,
}

/// Buckets and users of a cluster, for commands.
pub struct Offline {
    runtime: Runtime,
    buckets: Arc<Buckets<ClusterDoor>>,
}

fn failure(code: &str, message: String, hint: &str) -> Failure {
    Failure { code: code.to_string(), message, hint: hint.to_string() }
}

fn runtime(threads: usize) -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name("gateway").enable_all();
    builder.build().map_err(|error| {
        failure("io", format!("cannot start threads: {error}"), "raise the thread limit")
    })
}

fn buckets(
    config: &Config,
    pool: &str,
    handle: &Handle,
    settings: bucket::Settings,
) -> Result<Arc<Buckets<ClusterDoor>>, Failure> {
    let door = ClusterDoor::new(config, pool.to_string(), handle.clone())?;
    Ok(Buckets::new(Arc::new(door), Sealer::new(config.key.bytes()), settings))
}

/// Runs a gateway until a signal to stop arrives, and all requests are finished.
///
/// Errors: `io` (it cannot listen), `tls` (certificate or key cannot be used), `io_uring`.
pub fn run(config: &Config, settings: Settings) -> Result<(), Failure> {
    let Settings { index_pool, data_pool, inline_max, region, domains, threads, .. } = settings;
    let runtime = runtime(threads)?;
    let tls =
        settings.tls.map(Tls::new).transpose().map_err(|why| {
            failure("tls", why, "give the PEM files of a certificate and its key")
        })?;
    let tls = tls.map(Arc::new);
    let kept = bucket::Settings { data_pool, inline_max, ..bucket::Settings::default() };
    let buckets = buckets(config, &index_pool, runtime.handle(), kept)?;
    let domains = domains.into_iter().map(|domain| domain.to_ascii_lowercase()).collect();
    let users = Users::new(buckets.clone());
    let collected = buckets.clone();
    let shared = Arc::new(Shared { buckets, users, region, domains });
    let limits = Arc::new(settings.limits);
    let service = Service::new(Wire::new(shared), limits.clone());
    let (stop, stopped) = watch::channel(false);
    let server = Server::new(service, limits, tls.clone(), stopped.clone());
    let cannot_listen = |error: std::io::Error| {
        let message = format!("cannot listen on {}: {error}", settings.listen.join(", "));
        failure("io", message, "choose another address with --listen")
    };
    runtime.block_on(async {
        let listeners = listen(&settings.listen).await.map_err(cannot_listen)?;
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
        let event = TraceEvent::info("the gateway listens");
        io::log::write(&event.list("addresses", addresses.map(|address| address.to_string())));
        if let Some(tls) = tls {
            tokio::spawn(async move { tls.watch().await });
        }
        let mut terminate = signal(SignalKind::terminate()).map_err(cannot_listen)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_listen)?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            io::log::write(&TraceEvent::info("the gateway stops"));
            let _ = stop.send(true);
        });
        let mut stopped = stopped;
        tokio::spawn(async move {
            tokio::select! {
                () = collected.collect() => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
        server.serve(listeners).await;
        Ok(())
    })?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(())
}

impl Offline {
    /// Opens the buckets of a cluster.
    pub fn open(config: &Config, index_pool: &str) -> Result<Offline, Failure> {
        let runtime = runtime(1)?;
        let settings = bucket::Settings::default();
        let buckets = buckets(config, index_pool, runtime.handle(), settings)?;
        Ok(Offline { runtime, buckets })
    }

    /// Returns the buckets.
    pub fn buckets(&self) -> &Arc<Buckets<ClusterDoor>> {
        &self.buckets
    }

    /// Waits for a future.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
