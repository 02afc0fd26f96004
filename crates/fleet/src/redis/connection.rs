//! One connection, made when it is needed and again after it broke; and calls that give a server the functions if it lacks them.
//!
//! # Who is impatient
//! Callers give up after a quarter of a lease; what they have begun does not end with them, or a long way would never be walked to its end, and a
//! connection that nobody answers on any more would never be noticed. Both are tasks of the runtime that the call is made in, and both are bounded:
//!
//! | what | goes on until | then |
//! |---|---|---|
//! | a connection being made; one at a time, all callers wait for the same | it is there, or `within` passed twice (the way, and the first `PING`) | it is kept, whoever still waits; or the next caller begins anew |
//! | commands that were sent | all are answered, or `within` passed | nobody answered in that time, or the answer says so: the connection is given up, unless there is a newer one |
//!
//! So a connection that went dead silently (a lost machine, a forgotten address translation) is replaced `within` after the first call that it
//! swallowed. What is answered late is not told to anybody; the sequence numbers of requests are for that. A caller that gives up before there is a
//! connection has sent nothing.
//!
//! A runtime that ends takes its tasks along. A making that was dropped is an error for who waits for it next, who clears it away; after that one it
//! is begun anew.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::cluster::ClusterConfig;
use ::redis::cluster_async::ClusterConnection;
use ::redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use ::redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisResult, Value};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use super::address::Target;
use super::errors::{broken, explain, is_redirected};
use super::nodes::{Map, Master, Nodes, Way, read_masters};
use crate::store::StoreError;

/// The functions, as the server loads them.
const LIBRARY: &str = include_str!("grant.lua");

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A number for a text; the same one in each process (FNV-1a).
pub(super) fn mixed(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The way to a store.
pub(super) struct Link {
    pub(super) within: Duration,
    inner: Arc<Inner>,
}

/// What outlives an impatient caller.
struct Inner {
    target: Target,
    connection: Mutex<Slot>,
    /// Of a cluster.
    nodes: Nodes,
}

/// What all who wait for a connection get.
type Made = Result<(u64, Connection), StoreError>;

/// The connection, by number: what is found out about an older one says nothing of this one.
#[derive(Default)]
struct Slot {
    /// Of the last that was begun. Does not come round.
    number: u64,
    state: SlotState,
}

#[derive(Default)]
enum SlotState {
    #[default]
    Nothing,
    Making(Shared<BoxFuture<'static, Made>>),
    Made(Connection),
}

fn runtime_ended<E>(_: E) -> StoreError {
    StoreError::Unreachable("the runtime that it was asked in has ended".to_owned())
}

impl Inner {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.connection
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// The connection of that number is of no more use.
    fn give_up(&self, number: u64) {
        let mut slot = self.slot();
        if slot.number == number {
            slot.state = SlotState::Nothing;
        }
    }

    /// The connection and its number; waits while it is being made.
    async fn connect(self: &Arc<Self>, within: Duration) -> Made {
        let (number, making) = {
            let mut slot = self.slot();
            let making = match &slot.state {
                SlotState::Made(connection) => return Ok((slot.number, connection.clone())),
                SlotState::Making(making) => making.clone(),
                SlotState::Nothing => {
                    slot.number += 1;
                    let task = tokio::spawn(self.clone().make(slot.number, within));
                    let made = task.map(|made| made.map_err(runtime_ended)?);
                    let making = made.boxed().shared();
                    slot.state = SlotState::Making(making.clone());
                    making
                }
            };
            (slot.number, making)
        };
        let made = making.await;
        if made.is_err() {
            self.give_up(number);
        }
        made
    }

    /// Makes the connection of that number. Only one is made at a time, so the slot is still that one's at the end.
    async fn make(self: Arc<Self>, number: u64, within: Duration) -> Made {
        let made = self.target.connect(within).await;
        self.slot().state = match &made {
            Ok(connection) => SlotState::Made(connection.clone()),
            Err(_) => SlotState::Nothing,
        };
        made.map(|connection| (number, connection))
    }

    /// Sends commands in one round trip (in a cluster: all at once, those of a node in one batch).
    async fn send(
        &self,
        (number, connection): (u64, Connection),
        commands: &[Cmd],
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let answers = match connection {
            Connection::Single(mut connection) => {
                let mut pipe = ::redis::Pipeline::with_capacity(commands.len());
                for command in commands {
                    pipe.add_command(command.clone());
                }
                pipe.ignore_errors();
                pipe.query_async::<Vec<RedisResult<Value>>>(&mut connection)
                    .await
            }
            Connection::Cluster(connection) => Ok(self.send_by_node(&connection, commands).await),
        };
        let lost = match &answers {
            Err(error) => broken(error),
            Ok(answers) => answers
                .iter()
                .any(|answer| answer.as_ref().is_err_and(broken)),
        };
        if lost {
            self.give_up(number);
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

    /// How the commands are put together to batches; `None`: not at all.
    async fn batches(
        &self,
        connection: &ClusterConnection,
        commands: &[Cmd],
    ) -> Option<(Arc<Map>, Vec<(u16, Vec<usize>)>)> {
        // One command finds its way by itself, and may be for all nodes.
        if commands.len() < 2 {
            return None;
        }
        let map = match self.nodes.begin() {
            Way::Singly => return None,
            Way::Batches(Some(map)) => map,
            Way::Batches(None) => {
                let masters = masters_of(connection.clone()).await.ok()?;
                Arc::new(Map::new(&masters))
            }
        };
        let batches = map.batches(commands);
        Some((map, batches))
    }

    /// To the nodes of a cluster, each its own, all at once.
    async fn send_by_node(
        &self,
        connection: &ClusterConnection,
        commands: &[Cmd],
    ) -> Vec<RedisResult<Value>> {
        let Some((map, batches)) = self.batches(connection, commands).await else {
            return send_singly(connection, commands.iter()).await;
        };
        let trips = batches
            .iter()
            .map(|(slot, batch)| send_batch(connection.clone(), commands, *slot, batch));
        let trips = futures_util::future::join_all(trips).await;
        let mut answers: Vec<Option<RedisResult<Value>>> = vec![None; commands.len()];
        let mut well = true;
        for ((_, batch), trip) in batches.iter().zip(trips) {
            match trip {
                Ok(values) => {
                    for (index, value) in batch.iter().zip(values) {
                        answers[*index] = Some(value.extract_error());
                    }
                }
                Err(error) => {
                    well = false;
                    // Who was sent elsewhere gets there alone.
                    if batch.len() == 1 || !is_redirected(&error) {
                        for index in batch {
                            answers[*index] = Some(Err(error.clone()));
                        }
                    }
                }
            }
        }
        if well {
            self.nodes.went_well(map);
        }
        let open: Vec<usize> = (0..commands.len())
            .filter(|index| answers[*index].is_none())
            .collect();
        let again = send_singly(connection, open.iter().map(|index| &commands[*index])).await;
        for (index, answer) in open.into_iter().zip(again) {
            answers[index] = Some(answer);
        }
        answers.into_iter().flatten().collect()
    }
}

impl Target {
    /// A connection on which calls may be sent.
    async fn connect(&self, within: Duration) -> Result<Connection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(within))
            .set_response_timeout(Some(within));
        let made = match self {
            Target::Single(client) => {
                let made = client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await;
                Connection::Single(made.map_err(|error| explain(&error))?)
            }
            Target::Cluster(client) => {
                let config = ClusterConfig::new()
                    .set_connection_timeout(within)
                    .set_response_timeout(within);
                let made = client.get_async_connection_with_config(config).await;
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
        match pong {
            Err(error) if error.code() == Some("NOAUTH") => Err(explain(&error)),
            // It is there, and says nothing: the next one may.
            Err(error) if error.is_timeout() => Err(explain(&error)),
            _ => Ok(made),
        }
    }
}

impl Link {
    pub(super) fn new(target: Target, within: Duration) -> Link {
        let inner = Inner {
            target,
            connection: Mutex::new(Slot::default()),
            nodes: Nodes::default(),
        };
        Link {
            within,
            inner: Arc::new(inner),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.inner.target, Target::Cluster(_))
    }

    async fn connect(&self) -> Result<Connection, StoreError> {
        let (_, connection) = self.inner.connect(self.within).await?;
        Ok(connection)
    }

    /// Sends commands once there is a connection; goes on without its caller from there.
    async fn send(&self, commands: Arc<[Cmd]>) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let connection = self.inner.connect(self.within).await?;
        let inner = self.inner.clone();
        let sent = tokio::spawn(async move { inner.send(connection, &commands).await });
        sent.await.map_err(runtime_ended)?
    }

    /// Which lives of a cluster's masters these are, as one number.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn lives(&self) -> Result<u64, StoreError> {
        let mut lives = Vec::new();
        for master in self.masters().await? {
            let mut command = ::redis::cmd("INFO");
            command.arg("server");
            let answer = self.call_at(master, command).await?;
            let text: String = ::redis::from_redis_value(answer)
                .map_err(|error| StoreError::Garbage(error.to_string()))?;
            let life = text.lines().find(|line| line.starts_with("run_id:"));
            lives.push(life.unwrap_or_default().to_owned());
        }
        lives.sort();
        Ok(mixed(lives.concat().as_bytes()))
    }

    /// Sends calls of our functions, and once more what a server answers that does not have them yet.
    pub(super) async fn call(&self, commands: Vec<Cmd>) -> Vec<Result<Value, StoreError>> {
        let commands: Arc<[Cmd]> = commands.into();
        let failed = |error: &StoreError| commands.iter().map(|_| Err(error.clone())).collect();
        let mut results = match self.send(commands.clone()).await {
            Ok(answers) => answers,
            Err(error) => return failed(&error),
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
            let loaded = self.send([load].into()).await;
            let loaded =
                loaded.and_then(|mut answers| answers.remove(0).map_err(|error| explain(&error)));
            if let Err(error) = loaded {
                return failed(&error);
            }
            match self.send(commands.clone()).await {
                Ok(answers) => results = answers,
                Err(error) => return failed(&error),
            }
        }
        results
            .into_iter()
            .map(|answer| answer.map_err(|error| explain(&error)))
            .collect()
    }

    pub(super) async fn call_one(&self, command: Cmd) -> Result<Value, StoreError> {
        let nothing = || StoreError::Garbage("no answer".to_owned());
        self.call(vec![command]).await.pop().ok_or_else(nothing)?
    }

    /// The servers of a cluster that hold keys of their own, by `host:port`; nothing where there is one server.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn masters(&self) -> Result<Vec<(String, u16)>, StoreError> {
        match self.connect().await? {
            Connection::Cluster(connection) => {
                let masters = masters_of(connection).await?;
                Ok(masters.into_iter().map(|master| master.address).collect())
            }
            Connection::Single(_) => Ok(Vec::new()),
        }
    }

    /// One command to one node of a cluster.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn call_at(
        &self,
        (host, port): (String, u16),
        command: Cmd,
    ) -> Result<Value, StoreError> {
        let Connection::Cluster(mut connection) = self.connect().await? else {
            return self.call_one(command).await;
        };
        let there = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
        let answer = connection.route_command(command, there).await;
        answer.map_err(|error| explain(&error))
    }
}

/// Who has which slots, as any node says.
async fn masters_of(mut connection: ClusterConnection) -> Result<Vec<Master>, StoreError> {
    let mut command = ::redis::cmd("CLUSTER");
    let anybody = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    let answer = connection
        .route_command(command.arg("NODES").to_owned(), anybody)
        .await
        .map_err(|error| explain(&error))?;
    let text: String = ::redis::from_redis_value(answer)
        .map_err(|error| StoreError::Garbage(error.to_string()))?;
    Ok(read_masters(&text))
}

/// Each command by itself, all at once; the client crate knows the way.
async fn send_singly<'a>(
    connection: &ClusterConnection,
    commands: impl Iterator<Item = &'a Cmd>,
) -> Vec<RedisResult<Value>> {
    let calls = commands.map(|command| {
        let mut connection = connection.clone();
        async move { command.query_async::<Value>(&mut connection).await }
    });
    futures_util::future::join_all(calls).await
}

/// Some of the commands to the node of a slot, in one go.
async fn send_batch(
    mut connection: ClusterConnection,
    commands: &[Cmd],
    slot: u16,
    batch: &[usize],
) -> RedisResult<Vec<Value>> {
    let mut pipe = ::redis::Pipeline::with_capacity(batch.len());
    for index in batch {
        pipe.add_command(commands[*index].clone());
    }
    let there = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
    let values = connection
        .route_pipeline(pipe, 0, batch.len(), there)
        .await?;
    if values.len() == batch.len() {
        return Ok(values);
    }
    let why = format!("{} answers to {} commands", values.len(), batch.len());
    Err((ErrorKind::Parse, "a batch", why).into())
}
