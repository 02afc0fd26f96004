//! What an error of the client, or of the server, means for us.

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

/// Whether a connection is of no more use after this.
pub(super) fn broken(error: &RedisError) -> bool {
    let moved = matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
    );
    moved || error.is_connection_dropped() || error.is_timeout()
}

/// Whether another node of the cluster has the key, or will have it.
pub(super) fn is_redirected(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::CrossSlot
        )
    )
}

pub(super) fn explain(error: &RedisError) -> StoreError {
    let why = error.to_string();
    let code = error.code().unwrap_or_default();
    let denied = matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM");
    if denied || error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::Denied(why);
    }
    if code == "WRONGTYPE" || why.contains("WRONGTYPE") {
        return StoreError::WrongType(why);
    }
    if code == "FLEETFORMAT" {
        return StoreError::Format(why);
    }
    if why.contains("unknown command") {
        return StoreError::Version(why);
    }
    if why.contains("switch database") {
        // What the server answers to the `SELECT` of a new connection, before anything else is sent.
        return StoreError::Address(format!("the number of its database: {why}"));
    }
    if why.contains("ACL failure") || why.contains("No permissions") {
        return StoreError::Denied(why);
    }
    let unwilling = ["OOM", "MISCONF", "NOREPLICAS", "READONLY"];
    if unwilling.contains(&code)
        || unwilling
            .iter()
            .any(|code| why.contains(&format!("-{code}")))
    {
        return StoreError::Unwilling(why);
    }
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel => StoreError::Unreachable(why),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::TryAgain,
        ) => StoreError::Unreachable(why),
        _ if error.is_timeout() => StoreError::Unreachable(why),
        _ => StoreError::Garbage(why),
    }
}
