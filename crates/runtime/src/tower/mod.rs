//! A tower layer that runs every request in its tenant's group; works under unmodified `axum::serve` and tonic's server.
//!
//! `isolate` (default) spawns the inner service's call into the tenant's group: the handler is scheduled by the group's weight and
//! limit, and is aborted when the connection drops the request. `charge` polls the call in the connection's own task, metered and
//! ordered by [`crate::InGroupExt::in_group`]: no task a request, but the handler shares its poll with the connection.
//!
//! # Bodies
//! The frames of an answer's body are computed in the group as well, in both modes: a body that streams (server-sent events, gRPC
//! streams) stays in a task of the group, which computes a frame when the connection asks for it. See [`GroupBody`].
//!
//! # Refusals
//! A request whose group is full, was removed or is killed under way is answered 503 (gRPC: status 14), or as
//! [`GroupLayer::on_refusal`] says; each is counted in [`crate::GroupStats::losses`].
//!
//! # Order of layers
//! The layers *inside* this one, and the handler, run in the group; those *outside* run in the connection's task, which is nobody's.
//! So put it outermost (added last with `Router::layer`), unless a layer is to answer before a tenant is charged for anything.
//!
//! What the connection's task keeps in its own memory does not reach an isolated handler, since that is another task:
//! - **spans**: with the feature `tracing`, handler and body run in the span that is current when the layer is called, so a
//!   trace layer may be outside. Without the feature they run in none.
//! - **tokio's task-locals** (`tokio::task_local!`) cannot be carried: nobody can list those of a task. A layer that sets one must be
//!   inside this one; or use `charge`, which polls the handler in the connection's task. (A streamed body is polled in a task of the
//!   group in both modes.)
//! - **extensions of the request** are carried: they are the better place.

mod answer;
mod body;
mod patience;
mod refusal;
mod select;
mod tenants;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;

use self::answer::sealed::{Divide, Rest};
use self::patience::{Patience, Start};
use self::refusal::{OnRefusal, is_grpc, reason_of, reason_of_end};

pub use self::answer::Answer;
pub use self::body::{BodyLost, BoxError, GroupBody};
pub use self::refusal::{Refusal, RefusalReason};
pub use self::select::{Claim, Select};
pub use self::tenants::ByHeader;

use crate::group::{Group, Seat, spawn_uncounted};
use crate::in_group::{InGroup, InGroupExt};
use crate::task::{JoinError, JoinHandle};

/// How a request runs in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Isolate,
    Charge,
}

/// Runs each request of the wrapped service in the group that its selector names.
#[derive(Clone, Debug)]
pub struct GroupLayer<S> {
    pub(self) select: S,
    mode: Mode,
    on_refusal: OnRefusal,
}

impl<S> GroupLayer<S> {
    /// A layer whose groups are chosen by a closure or another [`Select`]; use [`GroupLayer::by_header`] for the common case.
    ///
    /// The selector must map unknown tenants to some group, and must not make groups without a bound from what requests contain.
    pub fn by(select: S) -> Self {
        Self {
            select,
            mode: Mode::Isolate,
            on_refusal: OnRefusal::default(),
        }
    }

    /// Spawns each call into its group (default).
    pub fn isolate(mut self) -> Self {
        self.mode = Mode::Isolate;
        self
    }

    /// Charges each call to its group and lets it wait for its turn inside the connection's task, without a task of its own.
    pub fn charge(mut self) -> Self {
        self.mode = Mode::Charge;
        self
    }

    /// Answers requests that do not reach their handler by `hook` instead of [`Refusal::answer`]. `hook` gives status and headers; the body
    /// is empty. Called in the connection's task.
    pub fn on_refusal(
        mut self,
        hook: impl Fn(&Refusal) -> Response<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_refusal = OnRefusal::new(hook);
        self
    }
}

impl<S: Clone, V> Layer<V> for GroupLayer<S> {
    type Service = GroupService<S, V>;

    fn layer(&self, inner: V) -> Self::Service {
        GroupService {
            layer: self.clone(),
            inner,
        }
    }
}

/// Service of a [`GroupLayer`].
#[derive(Clone, Debug)]
pub struct GroupService<S, V> {
    layer: GroupLayer<S>,
    inner: V,
}

impl<S, V, B> Service<Request<B>> for GroupService<S, V>
where
    S: Select<Request<B>>,
    B: Send + 'static,
    V: Service<Request<B>> + Clone + Send + 'static,
    V::Future: Send + 'static,
    V::Response: Answer,
    V::Error: Send + 'static,
{
    type Response = <V::Response as Divide>::Passed;
    type Error = V::Error;
    type Future = GroupFuture<V::Response, V::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let claim = self.layer.select.claim(&request);
        // The service that was polled ready serves this call; the clone waits for the next.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        let duty = Duty {
            grpc: is_grpc(request.headers()),
            epoch: claim.group().shared.kills.now(),
            on_refusal: self.layer.on_refusal.clone(),
            patience: Patience::of(claim.group()),
            claim,
        };
        match self.layer.mode {
            Mode::Charge => GroupFuture::charge(ready, request, duty),
            Mode::Isolate => GroupFuture::isolate(ready, request, duty),
        }
    }
}

/// A task that is aborted with what it works for: a handler with its request, a pump with its body.
#[derive(Debug)]
pub struct Isolated<T> {
    handle: JoinHandle<T>,
}

impl<T> Future for Isolated<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context)
    }
}

/// A task that computes what remains of an answer; aborted when it is dropped.
type Pump = Pin<Box<dyn Future<Output = Result<(), JoinError>> + Send>>;

/// A task as a [`Pump`].
fn pump<T: Send + 'static>(task: Isolated<T>) -> Pump {
    Box::pin(async move { task.await.map(drop) })
}

impl<T> Drop for Isolated<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// What a request's future must know until its end.
#[derive(Debug)]
struct Duty {
    claim: Claim,
    on_refusal: OnRefusal,
    grpc: bool,
    /// The last kill before the request; see `kills`.
    epoch: u64,
    /// How long it may wait for its handler, if that is bounded.
    patience: Option<Patience>,
}

impl Duty {
    fn refuse<A: Divide>(&self, reason: RefusalReason) -> A::Passed {
        let head = self
            .on_refusal
            .refuse(self.claim.group(), reason, self.grpc);
        A::refused(head)
    }

    /// Whether the group was killed or removed, or the scheduler shut down, since the request came.
    fn is_over(&self) -> bool {
        let group = self.claim.group();
        group.inner.killed_at.is_after(self.epoch)
            || group.inner.is_removed()
            || group.shared.phase() != crate::shared::OPEN
    }

    /// Whether the end of the group has taken a charged request's seat away.
    fn has_lost<F>(&self, call: &InGroup<F>) -> bool {
        self.is_over() && !call.is_seated()
    }
}

/// What the task of an isolated request ends with: the answer, unless its head went ahead while the rest was computed. So whoever has
/// a whole answer knows that the group has one task less. The sender comes along, so that its end is no wake-up of its own.
struct Outcome<A: Divide, E> {
    answer: Option<Result<A::Passed, E>>,
    _sender: Option<oneshot::Sender<A::Passed>>,
}

/// What the call of a charged request gives: the answer's head, and a task for the rest.
type Charged<A, E> = Result<(<A as Divide>::Passed, Option<Rest>), E>;

pin_project! {
    /// Future of a [`GroupService`].
    pub struct GroupFuture<A: Divide, E> {
        // `None` once it is over.
        duty: Option<Duty>,
        #[pin]
        call: Call<A, E>,
    }
}

pin_project! {
    #[project = CallProjection]
    #[allow(clippy::large_enum_variant)]
    enum Call<A: Divide, E> {
        // In a task of the group.
        Isolate { head: Option<oneshot::Receiver<A::Passed>>, task: Option<Isolated<Outcome<A, E>>> },
        // In the caller's task.
        Charge { #[pin] call: InGroup<Pin<Box<dyn Future<Output = Charged<A, E>> + Send>>> },
        // Nowhere.
        Refused { reason: RefusalReason },
    }
}

impl<A: Divide, E> fmt::Debug for GroupFuture<A, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GroupFuture")
            .field("duty", &self.duty)
            .finish_non_exhaustive()
    }
}

impl<A: Divide, E: Send + 'static> GroupFuture<A, E> {
    fn new(duty: Duty, call: Call<A, E>) -> Self {
        Self {
            duty: Some(duty),
            call,
        }
    }

    fn isolate<V, B>(mut service: V, request: Request<B>, duty: Duty) -> Self
    where
        V: Service<Request<B>, Response = A, Error = E> + Send + 'static,
        V::Future: Send + 'static,
        B: Send + 'static,
    {
        let (sender, head) = oneshot::channel();
        let start = Start::of(duty.patience.as_ref());
        let work = async move {
            start.wait().await;
            let (answer, _sender) = match service.call(request).await {
                Ok(answer) => match answer.divide().await {
                    (passed, None) => (Some(Ok(passed)), Some(sender)),
                    (passed, Some(rest)) => {
                        // If nobody listens any more, this task is about to be aborted.
                        let _ = sender.send(passed);
                        rest.await;
                        (None, None)
                    }
                },
                Err(error) => (Some(Err(error)), Some(sender)),
            };
            Outcome { answer, _sender }
        };
        let here = Location::caller();
        let call = match spawn_uncounted(duty.claim.group(), in_span(work), here, Seat::Request) {
            Ok(handle) => Call::Isolate {
                head: Some(head),
                task: Some(Isolated { handle }),
            },
            Err(error) => Call::Refused {
                reason: reason_of(&error),
            },
        };
        Self::new(duty, call)
    }

    fn charge<V, B>(mut service: V, request: Request<B>, duty: Duty) -> Self
    where
        V: Service<Request<B>, Response = A, Error = E> + Send + 'static,
        V::Future: Send + 'static,
        B: Send + 'static,
    {
        let group = duty.claim.group();
        let start = Start::of(duty.patience.as_ref());
        let work = async move {
            start.wait().await;
            let answer = service.call(request).await?;
            Ok(answer.divide().await)
        };
        let work: Pin<Box<dyn Future<Output = Charged<A, E>> + Send>> = Box::pin(work);
        let call = match work.in_group(group).admitted() {
            Ok(call) => Call::Charge { call },
            Err(error) => Call::Refused {
                reason: reason_of(&error),
            },
        };
        Self::new(duty, call)
    }
}

impl<A: Divide, E: Send + 'static> Future for GroupFuture<A, E> {
    type Output = Result<A::Passed, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let duty = this.duty.as_mut().expect("polled after it was ready");
        let late = duty
            .patience
            .as_mut()
            .is_some_and(|patience| patience.is_over(context));
        let duty = &*duty;
        let done = match this.call.as_mut().project() {
            CallProjection::Isolate { .. } | CallProjection::Charge { .. } if late => {
                Ok((duty.refuse::<A>(RefusalReason::QueueTooLong), None))
            }
            CallProjection::Refused { reason } => Ok((duty.refuse::<A>(*reason), None)),
            CallProjection::Isolate { head, task } => {
                std::task::ready!(poll_isolated::<A, E>(head, task, duty, context))
            }
            CallProjection::Charge { mut call } => {
                // The end of the group comes to its tasks one by one, and counts those that it finds: the request, as one that has
                // a task of its own, is over when its seat is taken away, which wakes it.
                let polled = if duty.has_lost(&call) {
                    None
                } else {
                    match call.as_mut().poll(context) {
                        // The end may have come before the poll left its waker, and then has woken nobody. It wrote that it is
                        // the end before it took the seat away, and looked for the waker after that.
                        Poll::Pending if duty.has_lost(&call) => None,
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(done) => Some(done),
                    }
                };
                match polled {
                    None => Ok((duty.refuse::<A>(reason_of_end(duty.claim.group())), None)),
                    Some(Ok((passed, rest))) => spawn_rest::<A, E>(passed, rest, duty),
                    Some(Err(error)) => Err(error),
                }
            }
        };
        // What is left of the call goes now, whatever becomes of this future.
        let reason = RefusalReason::Killed;
        this.call.set(Call::Refused { reason });
        let claim = this.duty.take().map(|duty| duty.claim);
        Poll::Ready(done.map(|(mut passed, pump)| {
            if let Some(claim) = claim {
                A::attach(&mut passed, pump, claim);
            }
            passed
        }))
    }
}

/// What is passed on and who computes the rest, or the service's error.
type Done<A, E> = Result<(<A as Divide>::Passed, Option<Pump>), E>;

/// The answer of a request's task: by its end, or its head before that.
fn poll_isolated<A: Divide, E: Send + 'static>(
    head: &mut Option<oneshot::Receiver<A::Passed>>,
    task: &mut Option<Isolated<Outcome<A, E>>>,
    duty: &Duty,
    context: &mut Context<'_>,
) -> Poll<Done<A, E>> {
    let Some(running) = task else {
        return Poll::Pending;
    };
    let ended = Pin::new(running).poll(context);
    if let Poll::Ready(Ok(Outcome {
        answer: Some(answer),
        ..
    })) = ended
    {
        return Poll::Ready(answer.map(|passed| (passed, None)));
    }
    // After the look at the task: the head was sent before its end.
    match head.as_mut().map(|head| Pin::new(head).poll(context)) {
        Some(Poll::Ready(Ok(passed))) => {
            return Poll::Ready(Ok((passed, task.take().map(pump))));
        }
        // The sender goes with the task's future, just before the task has ended: it may not be asked again.
        Some(Poll::Ready(Err(_))) => *head = None,
        Some(Poll::Pending) | None => {}
    }
    let error = match ended {
        Poll::Pending => return Poll::Pending,
        Poll::Ready(ended) => ended.err(),
    };
    if let Some(Ok(payload)) = error.map(JoinError::try_into_panic) {
        // As without the layer: a handler's panic unwinds through the connection's task.
        std::panic::resume_unwind(payload);
    }
    // Somebody has ended the task.
    let reason = reason_of_end(duty.claim.group());
    Poll::Ready(Ok((duty.refuse::<A>(reason), None)))
}

/// The rest of a charged request's answer gets a task in the group: a connection must not poll it.
fn spawn_rest<A: Divide, E>(passed: A::Passed, rest: Option<Rest>, duty: &Duty) -> Done<A, E> {
    let Some(rest) = rest else {
        return Ok((passed, None));
    };
    // The request is in the group already: its gate goes when this comes.
    let here = Location::caller();
    match spawn_uncounted(duty.claim.group(), in_span(rest), here, Seat::Beyond) {
        Ok(handle) => Ok((passed, Some(pump(Isolated { handle })))),
        Err(error) => Ok((duty.refuse::<A>(reason_of(&error)), None)),
    }
}

/// Takes the caller's span along.
#[cfg(feature = "tracing")]
fn in_span<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracing::Instrument::in_current_span(future)
}

/// Without the feature `tracing` there are no spans to take along.
#[cfg(not(feature = "tracing"))]
fn in_span<F: Future>(future: F) -> F {
    future
}

/// A group as a layer's selector gives it.
impl From<Group> for Claim {
    fn from(group: Group) -> Self {
        Self::new(group, None)
    }
}
