//! Whom the failures of a round trip are held against: the store, or tenants.

use super::FleetFigures;
use crate::message::Reply;
use crate::store::StoreError;

/// What failed in one round trip.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Faults {
    of_store: Option<StoreError>,
    of_tenant: Option<StoreError>,
    /// Whether somebody was answered, which no store does that is away.
    answered: bool,
}

impl Faults {
    /// O(answers).
    pub(super) fn of(answers: &[Result<Reply, StoreError>]) -> Faults {
        let errors = || answers.iter().filter_map(|answer| answer.as_ref().err());
        let last = |of_tenant: bool| errors().rfind(|error| error.is_of_tenant() == of_tenant);
        let mut faults = Faults {
            of_store: last(false).cloned(),
            of_tenant: last(true).cloned(),
            answered: answers.iter().any(Result::is_ok),
        };
        // One and the same nonsense to many questions: whatever answers there is no store of ours.
        let first = errors().next();
        let same = answers.len() > 1 && errors().all(|error| Some(error) == first);
        if !faults.answered && same && matches!(first, Some(StoreError::Garbage(_))) {
            faults.of_store = faults.of_tenant.take();
        }
        faults
    }

    /// Says once that the store is away, and once that it is back; and once that some tenant's answers make no sense, until none is wrong.
    pub(super) fn say(self, figures: &mut FleetFigures, said_unreadable: &mut bool) {
        if let Some(error) = self.of_tenant {
            if !std::mem::replace(said_unreadable, true) {
                tracing::warn!(
                    target: "quotient",
                    %error,
                    "no lease for a tenant: its group goes on with what it holds, then on its floor"
                );
            }
            figures.last_error = Some(error);
        } else if self.answered {
            *said_unreadable = false;
        }
        if let Some(error) = self.of_store {
            if !figures.away {
                tracing::warn!(
                    target: "quotient",
                    %error,
                    "no lease from the fleet's store: groups go on with what they hold, then on their floors"
                );
            }
            figures.away = true;
            figures.last_error = Some(error);
        } else if self.answered {
            if figures.away {
                tracing::info!(target: "quotient", "the fleet's store answers again");
            }
            figures.away = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_tenant_is_answered_says_nothing_of_the_store() {
        let garbage = |why: &str| Err(StoreError::Garbage(why.to_owned()));
        let silent = || Err(StoreError::Unreachable("no answer".to_owned()));
        let mut figures = FleetFigures::default();
        let mut said = false;
        let mut take = |answers: &[Result<Reply, StoreError>]| {
            Faults::of(answers).say(&mut figures, &mut said);
            (figures.away, said, figures.last_error.is_some())
        };
        assert_eq!(take(&[Ok(Reply::Stale)]), (false, false, false));
        assert_eq!(take(&[garbage("a")]), (false, true, true));
        assert_eq!(take(&[garbage("a"), garbage("b")]), (false, true, true));
        let mixed = [Ok(Reply::Stale), garbage("a")];
        assert_eq!(take(&mixed), (false, true, true));
        assert_eq!(take(&[silent()]), (true, true, true));
        // Nothing that says that it is back.
        assert_eq!(take(&[garbage("a")]), (true, true, true));
        assert_eq!(take(&mixed), (false, true, true));
        assert_eq!(take(&[Ok(Reply::Stale)]), (false, false, true));
        // No server of ours.
        assert_eq!(take(&[garbage("a"), garbage("a")]), (true, false, true));
    }
}
