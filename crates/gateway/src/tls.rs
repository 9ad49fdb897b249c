//! TLS with a certificate and a key from files, which are read again when they change.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use base::TraceEvent;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How often the files are looked at.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// Where certificate and key are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those of its issuers, in PEM.
    pub certificate: PathBuf,
    /// The key, in PEM.
    pub key: PathBuf,
}

/// When a file was written, and its size.
type FileStamp = Option<(SystemTime, u64)>;

/// The certificate in use.
pub struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsFiles {
    /// Reads the files. The error says what is wrong with which.
    fn read(&self) -> Result<ServerConfig, String> {
        let of = |path: &PathBuf, error: &dyn std::fmt::Display| {
            format!("cannot use {}: {error}", path.display())
        };
        let chain = CertificateDer::pem_file_iter(&self.certificate);
        let chain: Result<Vec<_>, _> = chain.and_then(Iterator::collect);
        let chain = chain.map_err(|error| of(&self.certificate, &error))?;
        if chain.is_empty() {
            return Err(of(&self.certificate, &"it has no certificate"));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|error| of(&self.key, &error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| of(&self.certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn stamps(&self) -> [FileStamp; 2] {
        [&self.certificate, &self.key].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }
}

impl Tls {
    /// Reads the files for the first time.
    pub fn new(files: TlsFiles) -> Result<Tls, String> {
        let config = RwLock::new(Arc::new(files.read()?));
        Ok(Tls { files, config })
    }

    /// Returns the settings of a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again. If something is wrong with them, the certificate in use stays.
    pub fn read_again(&self) -> Result<(), String> {
        let config = Arc::new(self.files.read()?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Reads the files again whenever they change.
    pub async fn watch(&self) {
        let (mut used, mut told) = (self.files.stamps(), None);
        loop {
            tokio::time::sleep(LOOK_TIME).await;
            let now = self.files.stamps();
            if now == used {
                continue;
            }
            match self.read_again() {
                Ok(()) => {
                    io::log::write(&TraceEvent::info("the TLS certificate was read again"));
                    used = now;
                }
                // The key may come a moment later.
                Err(why) if told != Some(now) => {
                    let what = "the new TLS certificate cannot be used";
                    io::log::write(&TraceEvent::warn(what).with("why", why));
                    told = Some(now);
                }
                Err(_) => {}
            }
        }
    }
}
