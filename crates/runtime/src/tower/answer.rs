//! What services under a [`super::GroupLayer`] may answer.

use std::future::Future;
use std::pin::Pin;

use http::Response;
use http_body::Body;

use super::Pump;
use super::body::{BoxError, GroupBody, Rest, divide};
use super::select::Claim;

/// An answer that a [`super::GroupLayer`] can pass on, and stand in for: [`http::Response`] with any body whose frames can be sent to
/// other threads; strings and `()` for services without HTTP. Sealed: not for others to implement.
pub trait Answer: sealed::Divide {}

impl<A: sealed::Divide> Answer for A {}

pub(super) mod sealed {
    use super::{Claim, Future, Pin, Pump, Response};

    /// What is left to do after an answer's head is known.
    pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

    /// An answer that can be divided: what is passed on, and the rest that is to be computed in the group.
    pub trait Divide: Send + 'static {
        /// What the layer's clients get.
        type Passed: Send + 'static;

        /// The answer to a request that does not reach its service.
        fn refused(head: Response<()>) -> Self::Passed;

        /// Called, and polled, in the group.
        fn divide(self) -> impl Future<Output = (Self::Passed, Option<Rest>)> + Send;

        /// Ties what is passed on to who computes the rest.
        fn attach(passed: &mut Self::Passed, pump: Option<Pump>, claim: Claim);
    }
}

impl<B> sealed::Divide for Response<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Passed = Response<GroupBody<B::Data>>;

    fn refused(head: Response<()>) -> Self::Passed {
        head.map(|()| GroupBody::empty())
    }

    async fn divide(self) -> (Self::Passed, Option<sealed::Rest>) {
        let (head, body) = self.into_parts();
        let (body, rest) = divide(body).await;
        let pump = rest.map(|rest: Rest<B>| -> sealed::Rest { Box::pin(rest.pump()) });
        (Response::from_parts(head, body), pump)
    }

    fn attach(passed: &mut Self::Passed, pump: Option<Pump>, claim: Claim) {
        passed.body_mut().attach(pump, claim);
    }
}

macro_rules! whole {
    ($($kind:ty => $refused:expr),*) => { $(
        impl sealed::Divide for $kind {
            type Passed = $kind;

            fn refused(_: Response<()>) -> $kind {
                $refused
            }

            async fn divide(self) -> (Self, Option<sealed::Rest>) {
                (self, None)
            }

            fn attach(_: &mut Self, _: Option<Pump>, _: Claim) {}
        }
    )* };
}

whole!(() => (), &'static str => "refused", String => "refused".to_owned());
