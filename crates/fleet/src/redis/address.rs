//! From the text of an address to a client: one server, a cluster, or one that sentinels know.

use ::redis::cluster::ClusterClient;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsMode};
use tokio::sync::Mutex;

use crate::store::StoreError;

/// How often a cluster's client goes on to another node before it says that there is none. Default 2: the background task asks again anyway,
/// later and later.
const CLUSTER_RETRIES: u32 = 2;

/// Who is asked for a connection.
pub(super) enum Target {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
    Sentinel(Box<Mutex<SentinelClient>>),
}

/// What certificates are checked against: PEM, or nothing, which is the system's own.
#[derive(Clone, Copy, Default)]
pub(super) struct Roots<'a>(pub(super) Option<&'a [u8]>);

fn refused(error: RedisError) -> StoreError {
    StoreError::Address(error.to_string())
}

impl Target {
    /// # Errors
    /// [`StoreError::Address`].
    pub(super) fn new(address: &str, roots: Roots<'_>) -> Result<Target, StoreError> {
        let schemes = [
            ("redis-cluster://", "redis", true),
            ("rediss-cluster://", "rediss", true),
            ("redis-sentinel://", "redis", false),
            ("rediss-sentinel://", "rediss", false),
        ];
        for (scheme, of_each, cluster) in schemes {
            let Some(rest) = address.strip_prefix(scheme) else {
                continue;
            };
            return if cluster {
                Self::cluster(&nodes(of_each, rest)?, roots)
            } else {
                let (list, name) = rest.split_once('/').ok_or_else(|| {
                    StoreError::Address(format!("expected {scheme}host:port,.../master-name"))
                })?;
                Self::sentinel(nodes(of_each, list)?, name, roots)
            };
        }
        Self::single(address, roots)
    }

    fn single(address: &str, roots: Roots<'_>) -> Result<Target, StoreError> {
        #[cfg(feature = "tls")]
        if let Some(certificates) = roots.certificates() {
            let client = Client::build_with_tls(address, certificates).map_err(refused)?;
            return Ok(Target::Single(Box::new(client)));
        }
        roots.refuse_without_tls()?;
        let client = Client::open(address).map_err(refused)?;
        Ok(Target::Single(Box::new(client)))
    }

    fn cluster(nodes: &[ConnectionInfo], roots: Roots<'_>) -> Result<Target, StoreError> {
        let builder = ClusterClient::builder(nodes.iter().cloned()).retries(CLUSTER_RETRIES);
        #[cfg(feature = "tls")]
        let builder = match roots.certificates() {
            Some(certificates) => builder.certs(certificates),
            None => builder,
        };
        roots.refuse_without_tls()?;
        let client = builder.build().map_err(refused)?;
        Ok(Target::Cluster(Box::new(client)))
    }

    /// User and password are the servers'; sentinels have none.
    fn sentinel(
        nodes: Vec<ConnectionInfo>,
        name: &str,
        roots: Roots<'_>,
    ) -> Result<Target, StoreError> {
        let first = nodes.first();
        let login = first.map(|node| node.redis_settings().clone());
        let secure = first.is_some_and(|node| matches!(node.addr(), ConnectionAddr::TcpTls { .. }));
        let sentinels = nodes.into_iter().map(|node| node.addr().clone());
        let mut builder = SentinelClientBuilder::new(sentinels, name, SentinelServerType::Master)
            .map_err(refused)?;
        if let Some(user) = login.as_ref().and_then(|login| login.username()) {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = login.as_ref().and_then(|login| login.password()) {
            builder = builder.set_client_to_redis_password(password);
        }
        if secure {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        #[cfg(feature = "tls")]
        if let Some(certificates) = roots.certificates() {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        roots.refuse_without_tls()?;
        let client = builder.build().map_err(refused)?;
        Ok(Target::Sentinel(Box::new(Mutex::new(client))))
    }
}

impl Roots<'_> {
    #[cfg(feature = "tls")]
    fn certificates(self) -> Option<::redis::TlsCertificates> {
        self.0.map(|pem| ::redis::TlsCertificates {
            client_tls: None,
            root_cert: Some(pem.to_vec()),
        })
    }

    /// Certificates are of no use without TLS, and who gives some means it.
    fn refuse_without_tls(self) -> Result<(), StoreError> {
        if cfg!(not(feature = "tls")) && self.0.is_some() {
            let why = "certificates need the feature `tls` of quotient-fleet";
            return Err(StoreError::Address(why.to_owned()));
        }
        Ok(())
    }
}

/// `[user:password@]host:port,host:port`, each as an address of its own.
fn nodes(scheme: &str, list: &str) -> Result<Vec<ConnectionInfo>, StoreError> {
    let (login, hosts) = list.rsplit_once('@').unwrap_or(("", list));
    let at = if login.is_empty() { "" } else { "@" };
    hosts
        .split(',')
        .map(|host| format!("{scheme}://{login}{at}{host}"))
        .map(|url| url.into_connection_info().map_err(refused))
        .collect()
}
