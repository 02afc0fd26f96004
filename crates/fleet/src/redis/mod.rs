//! Budgets in Valkey or Redis: the client.
//!
//! # Keys, format 1
//! For a tenant such as `tenants/acme`, all with one hash tag, so that a cluster keeps them on one node (braces and `%` in names are
//! written as `%7B`, `%7D`, `%25`):
//!
//! | key | type | holds |
//! |---|---|---|
//! | `quotient:1:{tenants/acme}:tenant` | hash | `format` 1; the limit: `version`, `quota` (millionths of a CPU, 0: no limit), `burst`, `processes`, `lease`; `life` of the server, `seen`, `quiet`, `pool`, `fraction`, `held`, `used`, `floors`, `lost` (us); `demands` (MessagePack) |
//! | `quotient:1:{tenants/acme}:processes` | hash | process (16 hexadecimal digits) to its record (MessagePack) |
//! | `quotient:1:{tenants/acme}:ends` | sorted set | process by the end of its lease, or of its floor |
//!
//! The functions are the library `quotient_fleet_1`; a server that does not have it is given it. A user needs the commands `FCALL`,
//! `FCALL_RO`, `FUNCTION` (once a server), for `list` also `SCAN`, and in functions `HGET`, `HMGET`, `HSET`, `HDEL`, `ZADD`, `ZREM`,
//! `ZRANGEBYSCORE`, `DEL`, `TIME`, `INFO`, on keys `quotient:1:*`.

use std::fmt;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::cluster::ClusterClient;
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClient, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::Mutex;

use crate::limit::FleetLimit;
use crate::message::{Grant, ProcessId, Reply, Request};
use crate::store::{Store, StoreError};
use crate::tenant::TenantFigures;
use crate::units::{MicroCpus, Micros};

/// The functions, as the server loads them.
const LIBRARY: &str = include_str!("grant.lua");

/// How long a connection may take to be made, and an answer to come, unless [`RedisStore::within`] says otherwise.
///
/// Unit: milliseconds. Default: 500. The background task gives up sooner, after a quarter of a lease.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Most of the tenants that [`RedisStore::list`] returns.
pub const LISTED_MAX: usize = 100_000;

/// Budgets in Valkey or Redis, version 7 (Valkey 7.2) or later.
pub struct RedisStore {
    target: Target,
    connection: Mutex<Option<Connection>>,
    within: Duration,
}

enum Target {
    Single(Client),
    Cluster(Box<ClusterClient>),
    Sentinel(Box<Mutex<SentinelClient>>),
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
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
    /// - `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS (with the feature `tls`), `redis+unix://path`;
    /// - `redis-cluster://[user:password@]host:port,host:port`;
    /// - `redis-sentinel://host:port,host:port/master-name`.
    ///
    /// # Errors
    /// [`StoreError::Address`] for what is no address.
    pub fn new(address: &str) -> Result<RedisStore, StoreError> {
        let refused = |error: RedisError| StoreError::Address(error.to_string());
        let urls = |list: &str| -> Vec<String> {
            let (user, hosts) = list
                .rsplit_once('@')
                .map_or(("", list), |(user, hosts)| (user, hosts));
            let at = if user.is_empty() { "" } else { "@" };
            hosts
                .split(',')
                .map(|host| format!("redis://{user}{at}{host}"))
                .collect()
        };
        let target = if let Some(list) = address.strip_prefix("redis-cluster://") {
            Target::Cluster(Box::new(ClusterClient::new(urls(list)).map_err(refused)?))
        } else if let Some(rest) = address.strip_prefix("redis-sentinel://") {
            let (list, name) = rest.split_once('/').ok_or_else(|| {
                StoreError::Address(
                    "expected redis-sentinel://host:port,.../master-name".to_owned(),
                )
            })?;
            let client = SentinelClient::build(
                urls(list),
                name.to_owned(),
                None,
                SentinelServerType::Master,
            );
            Target::Sentinel(Box::new(Mutex::new(client.map_err(refused)?)))
        } else {
            Target::Single(Client::open(address).map_err(refused)?)
        };
        Ok(RedisStore {
            target,
            connection: Mutex::new(None),
            within: TIMEOUT,
        })
    }

    /// How long a connection may take to be made, and an answer to come. Default: 500 ms. A cluster's are its client's own.
    #[must_use]
    pub fn within(mut self, time: Duration) -> RedisStore {
        self.within = time;
        self
    }

    async fn connect(&self) -> Result<Connection, StoreError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.within))
            .set_response_timeout(Some(self.within));
        let made = match &self.target {
            Target::Single(client) => {
                let made = client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await;
                Connection::Single(made.map_err(|error| explain(&error))?)
            }
            Target::Cluster(client) => {
                let made = client.get_async_connection().await;
                Connection::Cluster(made.map_err(|error| explain(&error))?)
            }
            Target::Sentinel(client) => {
                let made = client
                    .lock()
                    .await
                    .get_async_connection_with_config(&config)
                    .await;
                Connection::Single(made.map_err(|error| explain(&error))?)
            }
        };
        // Who is not logged in may not even send a call: the server would hang up on that many arguments.
        let ping = ::redis::cmd("PING");
        let pong = match made.clone() {
            Connection::Single(mut connection) => ping.query_async::<Value>(&mut connection).await,
            Connection::Cluster(mut connection) => ping.query_async::<Value>(&mut connection).await,
        };
        if let Err(error) = pong
            && error.code() == Some("NOAUTH")
        {
            return Err(explain(&error));
        }
        *connection = Some(made.clone());
        Ok(made)
    }

    /// Sends commands in one round trip (in a cluster: all at once, each to its node).
    async fn send(&self, commands: &[Cmd]) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let answers = match self.connect().await? {
            Connection::Single(mut connection) => {
                let mut pipe = ::redis::Pipeline::with_capacity(commands.len());
                for command in commands {
                    pipe.add_command(command.clone());
                }
                pipe.ignore_errors();
                pipe.query_async::<Vec<RedisResult<Value>>>(&mut connection)
                    .await
            }
            Connection::Cluster(connection) => {
                let calls = commands.iter().map(|command| {
                    let mut connection = connection.clone();
                    async move { command.query_async::<Value>(&mut connection).await }
                });
                Ok(futures_util::future::join_all(calls).await)
            }
        };
        let lost = match &answers {
            Err(error) => broken(error),
            Ok(answers) => answers
                .iter()
                .any(|answer| answer.as_ref().is_err_and(broken)),
        };
        if lost {
            *self.connection.lock().await = None;
        }
        let answers = answers.map_err(|error| explain(&error))?;
        if answers.len() != commands.len() {
            return Err(StoreError::Garbage(format!(
                "{} answers to {} commands",
                answers.len(),
                commands.len()
            )));
        }
        Ok(answers)
    }

    /// Sends calls of our functions, and once more what a server answers that does not have them yet.
    async fn call(&self, commands: &[Cmd]) -> Vec<Result<Value, StoreError>> {
        let mut results = match self.send(commands).await {
            Ok(answers) => answers,
            Err(error) => return commands.iter().map(|_| Err(error.clone())).collect(),
        };
        let missing = |answer: &RedisResult<Value>| {
            let text = answer.as_ref().err().map(ToString::to_string);
            text.is_some_and(|text| text.contains("Function not found"))
        };
        if results.iter().any(missing) {
            let load = ::redis::cmd("FUNCTION")
                .arg("LOAD")
                .arg("REPLACE")
                .arg(LIBRARY)
                .to_owned();
            let loaded = self.send(&[load]).await;
            let loaded =
                loaded.and_then(|mut answers| answers.remove(0).map_err(|error| explain(&error)));
            if let Err(error) = loaded {
                return commands.iter().map(|_| Err(error.clone())).collect();
            }
            match self.send(commands).await {
                Ok(answers) => results = answers,
                Err(error) => return commands.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        results
            .into_iter()
            .map(|answer| answer.map_err(|error| explain(&error)))
            .collect()
    }

    async fn call_one(&self, command: Cmd) -> Result<Value, StoreError> {
        let nothing = || StoreError::Garbage("no answer".to_owned());
        self.call(&[command]).await.pop().ok_or_else(nothing)?
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
        let mut command = ask_command(tenant, request);
        command.arg(clock.0).arg(run);
        read_reply(&self.call_one(command).await?, request)
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
        let mut command = set_command(tenant, limit);
        command.arg(clock.0).arg(run);
        number(&self.call_one(command).await?)
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
        command.arg("quotient_fleet_1_get");
        keys(&mut command, tenant);
        let answer = self.call_one(command).await?;
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

    /// The names of all tenants that the store knows, in order; at most [`LISTED_MAX`]. Walks over all keys of the server. In a
    /// cluster of one node only.
    ///
    /// # Errors
    /// [`StoreError`], as each call.
    pub async fn list(&self) -> Result<Vec<String>, StoreError> {
        let mut names = std::collections::BTreeSet::new();
        let mut cursor = 0_i64;
        loop {
            let mut command = ::redis::cmd("SCAN");
            command
                .arg(cursor)
                .arg("MATCH")
                .arg("quotient:1:{*}:tenant")
                .arg("COUNT")
                .arg(1_000);
            let answer = self.call_one(command).await?;
            let (next, found) = match answer {
                Value::Array(parts) if parts.len() == 2 => {
                    let keys: Vec<String> = ::redis::from_redis_value(parts[1].clone())
                        .map_err(|error| StoreError::Garbage(error.to_string()))?;
                    (number(&parts[0])?, keys)
                }
                other => return Err(StoreError::Garbage(format!("{other:?}"))),
            };
            let inner = |key: &String| {
                let name = key.strip_prefix("quotient:1:{")?.strip_suffix("}:tenant")?;
                Some(
                    name.replace("%7B", "{")
                        .replace("%7D", "}")
                        .replace("%25", "%"),
                )
            };
            names.extend(found.iter().filter_map(inner));
            cursor = i64::try_from(next).unwrap_or(0);
            if cursor == 0 || names.len() >= LISTED_MAX {
                return Ok(names.into_iter().take(LISTED_MAX).collect());
            }
        }
    }
}

impl Store for RedisStore {
    async fn exchange(&self, questions: &[(&str, Request)]) -> Vec<Result<Reply, StoreError>> {
        let commands: Vec<Cmd> = questions
            .iter()
            .map(|(tenant, request)| ask_command(tenant, request))
            .collect();
        let answers = self.call(&commands).await;
        let pairs = answers.into_iter().zip(questions);
        pairs
            .map(|(answer, (_, request))| read_reply(&answer?, request))
            .collect()
    }

    async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        limit.validate()?;
        number(&self.call_one(set_command(tenant, limit)).await?)
    }
}

/// Whether a connection is of no more use after this.
fn broken(error: &RedisError) -> bool {
    let moved = matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
    );
    moved || error.is_connection_dropped() || error.is_timeout()
}

fn explain(error: &RedisError) -> StoreError {
    let why = error.to_string();
    let code = error.code().unwrap_or_default();
    let denied = matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM");
    if denied || error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::Denied(why);
    }
    if code == "WRONGTYPE" || why.contains("WRONGTYPE") {
        return StoreError::WrongType(why);
    }
    if why.contains("unknown command") || code == "FLEETFORMAT" {
        return StoreError::Version(why);
    }
    if why.contains("ACL failure") || why.contains("No permissions") {
        return StoreError::Denied(why);
    }
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel => StoreError::Unreachable(why),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::TryAgain,
        ) => StoreError::Unreachable(why),
        _ if error.is_timeout() => StoreError::Unreachable(why),
        _ => StoreError::Garbage(why),
    }
}

fn keys(command: &mut Cmd, tenant: &str) {
    let name = tenant
        .replace('%', "%25")
        .replace('{', "%7B")
        .replace('}', "%7D");
    command.arg(3);
    for part in ["tenant", "processes", "ends"] {
        command.arg(format!("quotient:1:{{{name}}}:{part}"));
    }
}

fn process_name(process: ProcessId) -> String {
    format!("{:016x}", process.0)
}

fn ask_command(tenant: &str, request: &Request) -> Cmd {
    let mut command = ::redis::cmd("FCALL");
    command.arg("quotient_fleet_1_ask");
    keys(&mut command, tenant);
    command.arg(process_name(request.process));
    let (version, limit) = match request.known {
        Some(limit) => (limit.version, limit),
        None => (0, FleetLimit::new(MicroCpus::ZERO)),
    };
    let quota = limit.quota.unwrap_or_default();
    for value in [
        request.sequence,
        request.used.0,
        request.left.0,
        request.demand.0,
        version,
        quota.0,
        limit.burst.0,
    ] {
        command.arg(value);
    }
    command.arg(limit.processes).arg(limit.lease.0);
    command
}

fn set_command(tenant: &str, limit: FleetLimit) -> Cmd {
    let mut command = ::redis::cmd("FCALL");
    command.arg("quotient_fleet_1_set");
    keys(&mut command, tenant);
    let quota = limit.quota.unwrap_or_default();
    command
        .arg(quota.0)
        .arg(limit.burst.0)
        .arg(limit.processes)
        .arg(limit.lease.0);
    command
}

/// A number that came as one, or as text.
fn signed(value: &Value) -> Result<i64, StoreError> {
    let text = match value {
        Value::Int(number) => return Ok(*number),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text.as_str()),
        _ => None,
    };
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| StoreError::Garbage(format!("expected a number: {value:?}")))
}

fn number(value: &Value) -> Result<u64, StoreError> {
    let number = signed(value)?;
    u64::try_from(number).map_err(|_| StoreError::Garbage(format!("{number} below zero")))
}

fn numbers(value: &Value, count: usize) -> Result<Vec<i64>, StoreError> {
    match value {
        Value::Array(values) if values.len() == count => values.iter().map(signed).collect(),
        other => Err(StoreError::Garbage(format!(
            "expected {count} numbers: {other:?}"
        ))),
    }
}

fn read_limit(values: &[i64]) -> Result<FleetLimit, StoreError> {
    let garbage = || StoreError::Garbage(format!("expected a limit: {values:?}"));
    let [version, quota, burst, processes, lease] = values else {
        return Err(garbage());
    };
    let unsigned = |value: &i64| u64::try_from(*value).map_err(|_| garbage());
    let quota = unsigned(quota)?;
    let limit = FleetLimit {
        version: unsigned(version)?,
        quota: (quota > 0).then_some(MicroCpus(quota)),
        burst: Micros(unsigned(burst)?),
        processes: u32::try_from(*processes).map_err(|_| garbage())?,
        lease: Micros(unsigned(lease)?),
    };
    limit
        .validate()
        .map_err(|error| StoreError::Garbage(error.to_string()))?;
    Ok(limit)
}

fn read_reply(value: &Value, request: &Request) -> Result<Reply, StoreError> {
    let values = numbers(value, 10)?;
    let garbage = || StoreError::Garbage(format!("expected an answer: {values:?}"));
    let amount = |index: usize| u64::try_from(values[index]).map_err(|_| garbage());
    if values[0] == 3 {
        return Ok(Reply::Stale);
    }
    if values[0] == 2 && values[5] == 0 {
        return Ok(Reply::Unlimited { limit: None });
    }
    let limit = read_limit(&values[5..10])?;
    match values[0] {
        0 => Ok(Reply::Granted(Grant {
            amount: Micros(amount(1)?),
            duration: Micros(amount(2)?),
            sequence: request.sequence,
            share: MicroCpus(amount(3)?),
            floor: values[4] == 1,
            limit,
        })),
        1 => Ok(Reply::Quiet {
            limit,
            floor: values[4] == 1,
            wait: Micros(amount(2)?),
        }),
        2 if limit.quota.is_none() => Ok(Reply::Unlimited { limit: Some(limit) }),
        _ => Err(garbage()),
    }
}
