//! Bodies of answers: computed in the group, sent by the connection.
//!
//! A stream does its work in `poll_frame`, which a connection calls from its own task: outside the group, if nobody takes care. So a
//! body whose frames are not there yet stays in the group: a task of it, the *pump*, polls the body, and the connection has a
//! [`GroupBody`] that takes the frames out of an exchange.
//!
//! # Protocol
//! One lock, held for a few instructions, never while a body is polled or a waker called. The exchange holds at most one frame.
//!
//! | slot | meaning | left by |
//! |---|---|---|
//! | `Idle` | nobody asks | reader: `Wanted`, and wakes the pump |
//! | `Wanted` | the reader waits | pump: polls the body once it sees this; `Ready`, and wakes the reader |
//! | `Ready` | a frame, an error, or the end | reader: takes it; then `Idle`, or `Over` after the last |
//! | `Over` | the body has ended, or failed | nobody |
//!
//! *Backpressure is the body's own*: a frame is computed when the connection asks for it, not before. The one exception is a body that
//! knows its length: its first frame is taken along with the head, so that an ordinary answer costs no second turn in the queue.
//! *No wake-up is lost*: each side stores its waker and looks at the slot under the lock, and is woken after the slot has changed.
//! *What was there before is there now*: frames and trailers in order; size hint and end as the body last said, plus what lies in the
//! slot; an error of the body; its panic, in the connection's task; dropping the [`GroupBody`] aborts the pump, which drops the body.
//! If the pump is gone without an end (the group was killed), the reader gets [`BodyLost`].

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame, SizeHint};

use super::Pump;
use super::select::Claim;
use crate::loss::{Loss, note};
use crate::shielded::lock_shielded;

/// Errors of bodies, of whatever type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body was cut off: its group was killed or removed, or the scheduler was shut down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BodyLost {
    /// The path of the group.
    pub group: String,
}

impl fmt::Display for BodyLost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the body was cut off: the tasks of group {:?} were ended",
            self.group
        )
    }
}

impl Error for BodyLost {}

/// What the body said last, or `None` for its end.
type Said<D> = Option<Result<Frame<D>, BoxError>>;

#[derive(Debug)]
enum Slot<D> {
    Idle,
    Wanted,
    Ready(Said<D>),
    Over,
}

#[derive(Debug)]
struct State<D> {
    slot: Slot<D>,
    /// What the body has left, and whether that is nothing, beyond the slot.
    hint: SizeHint,
    ended: bool,
    reader: Option<Waker>,
    pump: Option<Waker>,
}

/// Where the pump puts frames and the connection takes them.
#[derive(Debug)]
struct Exchange<D> {
    state: Mutex<State<D>>,
}

impl<D> Exchange<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Pump: what the body said, and what it says of the rest. A connection has bodies of several tenants: their pumps are not stopped under a lock.
    fn put(&self, said: Said<D>, hint: SizeHint, ended: bool) {
        let mut state = lock_shielded(&self.state);
        state.slot = Slot::Ready(said);
        state.hint = hint;
        state.ended = ended;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Pump: until somebody wants a frame.
    async fn wanted(&self) {
        poll_fn(|context| {
            let mut state = lock_shielded(&self.state);
            if matches!(state.slot, Slot::Wanted) {
                return Poll::Ready(());
            }
            keep(&mut state.pump, context);
            Poll::Pending
        })
        .await;
    }

    /// Reader: what is there, or the wish for it.
    fn take(&self, context: &Context<'_>) -> Poll<Said<D>> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.slot, Slot::Idle) {
            Slot::Ready(said) => {
                let last = state.ended || !matches!(said, Some(Ok(_)));
                if last {
                    state.slot = Slot::Over;
                }
                Poll::Ready(said)
            }
            Slot::Over => {
                state.slot = Slot::Over;
                Poll::Ready(None)
            }
            before @ (Slot::Idle | Slot::Wanted) => {
                state.slot = Slot::Wanted;
                keep(&mut state.reader, context);
                let pump = match before {
                    Slot::Idle => state.pump.take(),
                    _ => None,
                };
                drop(state);
                if let Some(pump) = pump {
                    pump.wake();
                }
                Poll::Pending
            }
        }
    }
}

fn keep(slot: &mut Option<Waker>, context: &Context<'_>) {
    if !slot
        .as_ref()
        .is_some_and(|known| known.will_wake(context.waker()))
    {
        *slot = Some(context.waker().clone());
    }
}

/// The body of an answer that passed a [`super::GroupLayer`]: its frames were computed in the request's group.
pub struct GroupBody<D> {
    /// `None` for an answer of the layer itself: it has no body.
    exchange: Option<Arc<Exchange<D>>>,
    /// The pump; `None` if everything lies in the exchange.
    pump: Option<Pump>,
    /// The tenant is not given up while its answer is under way.
    claim: Option<Claim>,
}

impl<D> fmt::Debug for GroupBody<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GroupBody")
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

impl<D> GroupBody<D> {
    pub(super) fn empty() -> Self {
        Self {
            exchange: None,
            pump: None,
            claim: None,
        }
    }

    /// The other side: who computes the frames, and for whom.
    pub(super) fn attach(&mut self, pump: Option<Pump>, claim: Claim) {
        self.pump = pump;
        self.claim = Some(claim);
    }

    /// The pump is gone. `None` if that is no loss: then what it left lies in the exchange.
    fn lost(&mut self, exchange: &Exchange<D>, context: &Context<'_>) -> Poll<Said<D>> {
        self.pump = None;
        // It may have put its last frame just before its end.
        if let Poll::Ready(said) = exchange.take(context) {
            return Poll::Ready(said);
        }
        exchange.lock().slot = Slot::Over;
        let group = self.claim.as_ref().map(Claim::group);
        let path = group.map_or_else(String::new, |group| group.path().to_owned());
        let lost = BodyLost { group: path };
        if let Some(group) = group {
            note(&group.shared, &group.inner, Loss::CutBody, 1, &lost);
        }
        Poll::Ready(Some(Err(lost.into())))
    }
}

impl<D: bytes::Buf> Body for GroupBody<D> {
    type Data = D;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<D>, BoxError>>> {
        let Some(exchange) = self.exchange.clone() else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(said) = exchange.take(context) {
            return Poll::Ready(said);
        }
        let Some(pump) = &mut self.pump else {
            return self.lost(&exchange, context);
        };
        match pump.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => self.lost(&exchange, context),
            Poll::Ready(Err(error)) => match error.try_into_panic() {
                // As without the layer: the panic of a body unwinds through the connection's task.
                Ok(payload) => std::panic::resume_unwind(payload),
                Err(_) => self.lost(&exchange, context),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.as_ref().is_none_or(|exchange| {
            let state = exchange.lock();
            match state.slot {
                Slot::Over => true,
                Slot::Ready(_) => false,
                Slot::Idle | Slot::Wanted => state.ended,
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(exchange) = &self.exchange else {
            return SizeHint::with_exact(0);
        };
        let state = exchange.lock();
        let waiting = match &state.slot {
            Slot::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, |data| {
                u64::try_from(data.remaining()).unwrap_or(u64::MAX)
            }),
            Slot::Over => return SizeHint::with_exact(0),
            _ => 0,
        };
        let mut hint = SizeHint::new();
        hint.set_lower(state.hint.lower().saturating_add(waiting));
        if let Some(upper) = state.hint.upper() {
            hint.set_upper(upper.saturating_add(waiting));
        }
        hint
    }
}

/// The part of a body that is still to be computed.
pub(super) struct Rest<B: Body> {
    body: Pin<Box<B>>,
    exchange: Arc<Exchange<B::Data>>,
}

/// Divides a body into what the connection gets and what remains to be done in the group, if anything does. Called in the group.
pub(super) async fn divide<B>(body: B) -> (GroupBody<B::Data>, Option<Rest<B>>)
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let mut slot = Slot::Idle;
    if body.is_end_stream() {
        slot = Slot::Over;
    } else if body.size_hint().exact().is_some() {
        // Short, as a rule: it comes along with the head.
        let first = poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await;
        if let Poll::Ready(said) = first {
            slot = Slot::Ready(said.map(|frame| frame.map_err(Into::into)));
        }
    }
    let ended = body.is_end_stream();
    let done = match &slot {
        Slot::Over => true,
        Slot::Ready(said) => ended || !matches!(said, Some(Ok(_))),
        Slot::Idle | Slot::Wanted => false,
    };
    let exchange = Arc::new(Exchange {
        state: Mutex::new(State {
            slot,
            hint: body.size_hint(),
            ended,
            reader: None,
            pump: None,
        }),
    });
    let reader = GroupBody {
        exchange: Some(exchange.clone()),
        pump: None,
        claim: None,
    };
    (reader, (!done).then_some(Rest { body, exchange }))
}

impl<B> Rest<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// The pump: computes frames as they are asked for, up to the end of the body.
    pub(super) async fn pump(self) {
        let Self { mut body, exchange } = self;
        loop {
            exchange.wanted().await;
            let said = poll_fn(|context| body.as_mut().poll_frame(context)).await;
            let ended = body.is_end_stream();
            let last = ended || !matches!(said, Some(Ok(_)));
            let said = said.map(|frame| frame.map_err(Into::into));
            exchange.put(said, body.size_hint(), ended);
            if last {
                return;
            }
        }
    }
}
