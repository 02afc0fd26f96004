//! `axum::serve`, with connections in a group.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;

use axum::extract::ConnectInfo;
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use quotient::Group;
use quotient::hyper::GroupExecutor;

use crate::Tenants;

impl Tenants {
    /// Serves `app` as `axum::serve` does, HTTP/1 and HTTP/2: requests in their tenants' groups, connections in
    /// [`Tenants::connections`]. `listener` is anything that axum serves. Never ends but by [`Serve::with_graceful_shutdown`].
    ///
    /// A connection that the group does not take (killed, full: `tasks_max`) is closed.
    pub fn serve<L: Listener>(&self, listener: L, app: Router) -> Serve<L> {
        Serve {
            listener,
            app: app.layer(self.layer()),
            connections: self.connections().clone(),
            told: None,
            end: None,
        }
    }
}

/// A server that is about to run: `.await` it.
#[must_use = "servers do nothing unless awaited"]
pub struct Serve<L: Listener> {
    listener: L,
    app: Router,
    connections: Group,
    /// Gives a connection's requests its address.
    told: Option<fn(Router, L::Addr) -> Router>,
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<L: Listener> fmt::Debug for Serve<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = formatter.debug_struct("Serve");
        parts
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl<L: Listener> Serve<L> {
    /// Takes no more connections once `signal` is ready, and ends when those that are open have answered.
    pub fn with_graceful_shutdown(
        mut self,
        signal: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.end = Some(Box::pin(signal));
        self
    }

    /// Handlers can take [`ConnectInfo`] of the other end's address, as with axum's `into_make_service_with_connect_info`.
    pub fn with_connect_info(mut self) -> Self
    where
        L::Addr: Clone + Sync + 'static,
    {
        self.told = Some(|app, address| app.layer(Extension(ConnectInfo(address))));
        self
    }

    async fn run(mut self) -> io::Result<()> {
        let mut end = self
            .end
            .take()
            .unwrap_or_else(|| Box::pin(std::future::pending()));
        let open = GracefulShutdown::new();
        let executor = GroupExecutor::new(self.connections.clone());
        loop {
            let (stream, address) = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut end => break,
            };
            let mut app = self.app.clone();
            if let Some(tell) = self.told {
                app = tell(app, address);
            }
            let service = TowerToHyperService::new(app);
            let (executor, watcher) = (executor.clone(), open.watcher());
            // Dropped handles detach; errors of one connection are its client's.
            drop(self.connections.spawn(async move {
                let mut builder = Builder::new(executor);
                // For WebSockets over HTTP/2, as `axum::serve`.
                builder.http2().enable_connect_protocol();
                let stream = TokioIo::new(stream);
                let connection = builder.serve_connection_with_upgrades(stream, service);
                let _ = watcher.watch(connection).await;
            }));
        }
        drop(self.listener);
        open.shutdown().await;
        Ok(())
    }
}

impl<L: Listener> IntoFuture for Serve<L> {
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
