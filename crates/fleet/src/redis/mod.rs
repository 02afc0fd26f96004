//! Budgets in Valkey or Redis: the client.
//!
//! # Keys, format 1
//! For a tenant such as `tenants/acme`, all with one hash tag, so that a cluster keeps them on one node (braces and `%` in names are
//! written as `%7B`, `%7D`, `%25`):
//!
//! | key | type | holds |
//! |---|---|---|
//! | `quotient:1:{tenants/acme}:tenant` | hash | `format` 1; the limit: `version`, `quota` (millionths of a CPU, 0: no limit), `burst`, `processes`, `lease`; `life` of the server (its run, and whose replica it was), `seen`, `quiet`, `pool`, `fraction`, `held`, `used`, `floors`, `lost` (us); `demands` (MessagePack); `entries`, how many the other two keys hold; `chosen`, the life in which somebody set the limit |
//! | `quotient:1:{tenants/acme}:processes` | hash | process (16 hexadecimal digits) to its record (MessagePack) |
//! | `quotient:1:{tenants/acme}:ends` | sorted set | process by the end of its lease, or of its floor |
//! | `quotient:1:store` | hash | `life` of the server that has remembered since `since` (us by its clock) all that it was told; not in a cluster, where each node has remembered since it began |
//!
//! The functions are the library `quotient_fleet_6`; a server that does not have it is given it. A user needs the commands `FCALL`,
//! `FCALL_RO`, `FUNCTION` (once a server), for `list` also `SCAN`, in a cluster `CLUSTER NODES` and `INFO`, and in functions `HGET`, `HMGET`, `HSET`, `HDEL`, `HLEN`, `ZADD`, `ZREM`, `ZCARD`,
//! `ZRANGEBYSCORE`, `DEL`, `TIME`, `INFO`, on keys `quotient:1:*`.

mod address;
mod connection;
mod errors;
mod nodes;
mod wire;

use std::fmt;
use std::time::Duration;

use ::redis::{Cmd, Value};

use self::address::{Roots, Target};
use self::connection::Link;
use self::wire::{
    MEMORY_KEY, ask_command, keys, number, numbers, read_limit, read_reply, scan_command,
    set_command, tenant_of,
};
use crate::limit::FleetLimit;
use crate::message::{Reply, Request};
use crate::store::{Store, StoreError, check_tenant};
use crate::tenant::TenantFigures;
use crate::units::Micros;

/// How long a connection may take to be made, and an answer to come, unless [`RedisStore::within`] says otherwise.
///
/// Unit: milliseconds. Default: 2,000. The background task gives up sooner, after a quarter of a lease.
const TIMEOUT: Duration = Duration::from_millis(2_000);

/// Most of the tenants that [`RedisStore::list`] returns.
pub const LISTED_MAX: usize = 100_000;

/// Budgets in Valkey or Redis, version 7 (Valkey 7.2) or later.
pub struct RedisStore {
    link: Link,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may hold passwords.
        formatter.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store at an address; connects with the first call.
    ///
    /// - `redis://[user:password@]host[:port][/db]`, `redis+unix://path`;
    /// - `redis-cluster://[user:password@]host:port,host:port`;
    /// - `redis-sentinel://[user:password@]host:port,host:port/master-name`; user and password are those of the servers, sentinels are asked without;
    /// - `rediss://`, `rediss-cluster://`, `rediss-sentinel://`: the same with TLS (feature `tls`); certificates are checked against the system's.
    ///
    /// # Errors
    /// [`StoreError::Address`] for what is no address.
    pub fn new(address: &str) -> Result<RedisStore, StoreError> {
        Self::open(address, Roots(None))
    }

    /// The same with TLS, where certificates are checked against these (PEM), and no others. Needs the feature `tls`.
    ///
    /// # Errors
    /// [`StoreError::Address`], also for an address without TLS.
    pub fn with_root_certificates(address: &str, pem: &[u8]) -> Result<RedisStore, StoreError> {
        Self::open(address, Roots(Some(pem)))
    }

    fn open(address: &str, roots: Roots<'_>) -> Result<RedisStore, StoreError> {
        let target = Target::new(address, roots)?;
        Ok(RedisStore {
            link: Link::new(target, TIMEOUT),
        })
    }

    /// How long a connection may take to be made, and an answer to come. Default: 2 s.
    #[must_use]
    pub fn within(mut self, time: Duration) -> RedisStore {
        self.link.within = time;
        self
    }

    /// One request at a given time in a given life of the server: for tests of the function.
    #[doc(hidden)]
    pub async fn ask_at(
        &self,
        tenant: &str,
        request: &Request,
        clock: Micros,
        run: u64,
    ) -> Result<Reply, StoreError> {
        let mut command = ask_command(tenant, request, self.link.is_cluster());
        command.arg(clock.0).arg(run);
        read_reply(&self.link.call_one(command).await?, request)
    }

    /// The same for a limit.
    #[doc(hidden)]
    pub async fn set_at(
        &self,
        tenant: &str,
        limit: FleetLimit,
        clock: Micros,
        run: u64,
    ) -> Result<u64, StoreError> {
        let mut command = set_command(tenant, limit, self.link.is_cluster());
        command.arg(clock.0).arg(run);
        number(&self.link.call_one(command).await?)
    }

    /// A tenant's limit and figures, as of the last call for it; `None` if the store knows of none. O(1).
    ///
    /// # Errors
    /// [`StoreError`], as each call.
    pub async fn get(
        &self,
        tenant: &str,
    ) -> Result<Option<(FleetLimit, TenantFigures)>, StoreError> {
        let mut command = ::redis::cmd("FCALL_RO");
        command.arg("quotient_fleet_6_get");
        keys(&mut command, tenant, self.link.is_cluster());
        let answer = self.link.call_one(command).await?;
        let values = numbers(&answer, 13)?;
        if values[0] == 0 {
            return Ok(None);
        }
        let limit = read_limit(&values[0..5])?;
        let amount = |index: usize| Micros(u64::try_from(values[index]).unwrap_or(0));
        let figures = TenantFigures {
            pool: values[7],
            held: amount(8),
            used: amount(9),
            floors: u32::try_from(values[10]).unwrap_or(u32::MAX),
            leases: amount(11).0,
            lost: amount(12),
        };
        Ok(Some((limit, figures)))
    }

    /// What is not in the store was never set: "no limit" is to be believed at once, not after [`MEMORY_SETTLES`](crate::MEMORY_SETTLES). For
    /// a store that is new; who says so of one that has forgotten gives away what it has forgotten. Not in a cluster.
    ///
    /// # Errors
    /// [`StoreError`], as each call; [`StoreError::Unwilling`] of a cluster.
    pub async fn confirm(&self) -> Result<(), StoreError> {
        if self.link.is_cluster() {
            let why = "the nodes of a cluster have each its own memory";
            return Err(StoreError::Unwilling(why.to_owned()));
        }
        let mut command = ::redis::cmd("FCALL");
        command
            .arg("quotient_fleet_6_confirm")
            .arg(1)
            .arg(MEMORY_KEY);
        self.link.call_one(command).await.map(|_| ())
    }

    /// The names of all tenants that the store knows, in order; at most [`LISTED_MAX`]. Walks over all keys of the server, or of each
    /// server of a cluster. What is no text in a name, which nobody set with this crate, is the replacement character.
    ///
    /// # Errors
    /// [`StoreError`], as each call.
    pub async fn list(&self) -> Result<Vec<String>, StoreError> {
        let mut names = std::collections::BTreeSet::new();
        let masters = self.link.masters().await?;
        if masters.is_empty() {
            self.scan(&mut names, None).await?;
        }
        for master in masters {
            self.scan(&mut names, Some(master)).await?;
        }
        Ok(names.into_iter().take(LISTED_MAX).collect())
    }

    /// The tenants of one server.
    async fn scan(
        &self,
        names: &mut std::collections::BTreeSet<String>,
        node: Option<(String, u16)>,
    ) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let command = scan_command(cursor);
            let answer = match node.clone() {
                Some(node) => self.link.call_at(node, command).await?,
                None => self.link.call_one(command).await?,
            };
            let (next, found) = match answer {
                Value::Array(mut parts) if parts.len() == 2 => {
                    let next = number(&parts[0])?;
                    let keys: Vec<Vec<u8>> = ::redis::from_redis_value(parts.remove(1))
                        .map_err(|error| StoreError::Garbage(error.to_string()))?;
                    (next, keys)
                }
                other => return Err(StoreError::Garbage(format!("{other:?}"))),
            };
            let found = found.iter().map(|key| String::from_utf8_lossy(key));
            names.extend(found.filter_map(|key| tenant_of(&key)));
            cursor = next;
            if cursor == 0 || names.len() >= LISTED_MAX {
                return Ok(());
            }
        }
    }
}

impl Store for RedisStore {
    async fn exchange(&self, questions: &[(&str, Request)]) -> Vec<Result<Reply, StoreError>> {
        let cluster = self.link.is_cluster();
        let commands: Vec<Cmd> = questions
            .iter()
            .map(|(tenant, request)| ask_command(tenant, request, cluster))
            .collect();
        let answers = self.link.call(commands).await;
        let pairs = answers.into_iter().zip(questions);
        pairs
            .map(|(answer, (_, request))| read_reply(&answer?, request))
            .collect()
    }

    async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        check_tenant(tenant)?;
        limit.validate()?;
        let command = set_command(tenant, limit, self.link.is_cluster());
        number(&self.link.call_one(command).await?)
    }

    async fn memory(&self) -> Result<u64, StoreError> {
        if self.link.is_cluster() {
            return self.link.lives().await;
        }
        let mut command = ::redis::cmd("FCALL");
        command
            .arg("quotient_fleet_6_memory")
            .arg(1)
            .arg(MEMORY_KEY);
        match self.link.call_one(command).await? {
            Value::BulkString(text) => Ok(connection::mixed(&text)),
            other => Err(StoreError::Garbage(format!("expected a memory: {other:?}"))),
        }
    }
}
