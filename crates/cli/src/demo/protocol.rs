//! What the demo's processes tell each other: one JSON object a line on the child's standard output.

use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::clock::SharedMicros;

/// A line from the server process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "server", rename_all = "snake_case")]
pub enum ServerLine {
    /// The server accepts connections on this port of 127.0.0.1.
    Listening {
        /// The port that the operating system chose.
        port: u16,
    },
    /// The counters at one moment.
    Sample(Sample),
    /// The same in the scene of twenty tenants.
    Tenants(TenantSample),
}

/// CPU time of each tenant's requests at one moment, from the start of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantSample {
    /// When it was read.
    pub at: SharedMicros,
    /// By tenants.
    pub cpu_ns: Vec<u64>,
}

/// The server's counters at one moment; each counts up from the start of the process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Sample {
    /// When the counters were read.
    pub at: SharedMicros,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
    /// CPU time inside the hogs' polls.
    pub hog_cpu_ns: u64,
    /// Documents that the hogs have worked off.
    pub hog_documents: u64,
    /// Requests that the victim has answered.
    pub requests: u64,
    /// How long threads of the process were ready and waited for a processor.
    pub waited_ns: u64,
    /// What Quotient's own clocks say, in its modes.
    pub groups: Option<GroupCpu>,
}

/// CPU time that Quotient has charged to its groups.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct GroupCpu {
    /// The victim's group.
    pub victim_ns: u64,
    /// The hogs' group.
    pub hogs_ns: u64,
}

/// A line from the client process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "client", rename_all = "snake_case")]
pub enum ClientLine {
    /// Something for the live display.
    Progress {
        /// Requests answered since the phase began.
        completed: u64,
        /// 99th percentile since the phase began; zero in the closed loop.
        p99_us: u64,
    },
    /// The closed loop is over.
    Capacity(Capacity),
    /// The open loop is over; the client's last line.
    Open(Open),
    /// The scene of twenty tenants is over; the client's only line.
    Tenants(TenantsDone),
}

/// What the tenants got.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantsDone {
    /// When measuring began.
    pub started: SharedMicros,
    /// When it ended.
    pub ended: SharedMicros,
    /// By tenants.
    pub tenants: Vec<TenantDone>,
}

/// What one tenant got.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct TenantDone {
    /// Requests that were sent and answered in that time.
    pub completed: u64,
    /// 99th percentile of their latency.
    pub p99_us: u64,
}

/// What the client's threads did during a loop.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ClientThreads {
    /// On a processor.
    pub ran_us: u64,
    /// Ready, while others had it.
    pub waited_us: u64,
}

/// What the closed loop found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Capacity {
    /// When it began.
    pub started: SharedMicros,
    /// When it ended.
    pub ended: SharedMicros,
    /// Requests answered in between.
    pub completed: u64,
    /// What answering cost the client.
    pub threads: ClientThreads,
}

/// What the open loop found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Open {
    /// When it began.
    pub started: SharedMicros,
    /// When the last intended arrival was due.
    pub ended: SharedMicros,
    /// Requests that arrived: intended starts within the phase.
    pub intended: u64,
    /// Requests answered before the phase was over.
    pub completed: u64,
    /// Requests that had not been answered when the client stopped waiting. Each is in the histogram with the time
    /// from its intended start to that moment, a lower bound of its latency.
    pub unanswered: u64,
    /// Latencies from the intended start: pairs of microseconds and count.
    pub histogram: Vec<(u64, u64)>,
    /// The same by the time of the answer.
    pub windows: Vec<Window>,
    /// What the client's threads did meanwhile.
    pub threads: ClientThreads,
}

/// Latencies of the requests answered in one stretch of time; the last stretch has the later ones as well.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Window {
    /// Start of the stretch, from the start of the phase.
    pub offset_us: u64,
    /// Requests in it.
    pub count: u64,
    /// 99th percentile of their latency.
    pub p99_us: u64,
}

/// Writes `line` to standard output at once.
///
/// # Errors
/// The write's error; for a child that means its parent is gone.
pub fn send<T: Serialize>(line: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&text)?;
    output.flush()
}

/// Reads lines until the other side closes or `deliver` returns false. A line that does not parse ends it too: the
/// other side is this very binary, so that can only be a process dying in mid-line.
pub fn receive<T: DeserializeOwned>(input: impl io::Read, mut deliver: impl FnMut(T) -> bool) {
    for line in io::BufReader::new(input).lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str(&line) else {
            return;
        };
        if !deliver(message) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field that is called as the line's tag is would be read as the tag.
    #[test]
    fn what_the_client_says_is_what_is_heard() {
        let capacity = Capacity {
            started: SharedMicros(1),
            ended: SharedMicros(2),
            completed: 3,
            threads: ClientThreads {
                ran_us: 4,
                waited_us: 5,
            },
        };
        let open = Open {
            started: SharedMicros(1),
            ended: SharedMicros(2),
            intended: 3,
            completed: 3,
            unanswered: 0,
            histogram: vec![(7, 3)],
            windows: Vec::new(),
            threads: capacity.threads,
        };
        for line in [ClientLine::Capacity(capacity), ClientLine::Open(open)] {
            let text = serde_json::to_string(&line).expect("plain structs");
            let mut heard = Vec::new();
            receive(text.as_bytes(), |line: ClientLine| {
                heard.push(line);
                true
            });
            assert_eq!(format!("{heard:?}"), format!("[{line:?}]"));
        }
    }

    #[test]
    fn lines_arrive_in_order_until_the_torn_one() {
        let text = b"{\"server\":\"listening\",\"port\":7}\n{\"server\":\"listening\",\"port\":8}\n{\"server\":\"lis";
        let mut ports = Vec::new();
        receive(&text[..], |line: ServerLine| {
            if let ServerLine::Listening { port } = line {
                ports.push(port);
            }
            true
        });
        assert_eq!(ports, [7, 8]);
    }
}
