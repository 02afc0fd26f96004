//! A task may have the end of a line in its name: any program can call itself so, and its lines must not make a trace unreadable.

use quotient_core::event::{Definition, Event, Kind, TaskId, TaskState};
use quotient_trace::{Format, Item, ReadError, Reader};

/// What happened, and what tasks are called.
type Told = (Vec<Event>, Vec<(u32, String)>);

fn read(text: &str) -> Result<Told, ReadError> {
    let mut reader = Reader::new(text.as_bytes(), Format::Text);
    let (mut events, mut names) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Event(event) => events.push(event),
            Item::Definition(Definition::Task { id, info }) => names.push((id.0, info.name)),
            Item::Definition(_) => {}
        }
    }
    Ok((events, names))
}

/// As the kernel writes it: the name that a line begins with is padded to 16.
const TRACE: &str = "          <idle>-0       [000] d..2.   1.000001: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=new
line next_pid=7 next_prio=120
        new
line-7       [000] d..2.   1.000002: sched_waking: comm=

 a pid=8 prio=120 target_cpu=001
        new
line-7       [000] d..2.   1.000003: sched_switch: prev_comm=new
line prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
             web-9       [001] d..2.   1.000004: sched_wakeup: comm=a
b
c pid=10 prio=120 target_cpu=001
";

#[test]
fn lines_of_such_a_task_are_read() {
    let (events, names) = read(TRACE).expect("it can be read");
    let kinds: Vec<&Kind> = events.iter().map(|event| &event.kind).collect();
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    let (idle, new) = (TaskId::IDLE, TaskId(7));
    assert!(matches!(kinds[0], Kind::Switch { prev, next, .. } if (*prev, *next) == (idle, new)));
    assert!(
        matches!(kinds[1], Kind::Waking { task, waker, .. } if (*task, *waker) == (TaskId(8), new))
    );
    let state = TaskState::parse("S").expect("sleeps");
    assert_eq!(
        *kinds[2],
        Kind::Switch {
            prev: new,
            state,
            next: idle
        }
    );
    assert!(matches!(kinds[3], Kind::Wakeup { task, .. } if task.0 == 10));
    for expected in [
        (7, "new\u{fffd}line"),
        (9, "web"),
        (10, "a\u{fffd}b\u{fffd}c"),
    ] {
        let is_it = |(id, name): &&(u32, String)| (*id, name.as_str()) == expected;
        assert!(
            names.iter().any(|name| is_it(&name)),
            "{expected:?} in {names:?}"
        );
    }
    assert!(names.iter().all(|(_, name)| !name.contains('\n')));
}

#[test]
fn what_is_no_name_stays_an_error_of_its_own_line() {
    let good = "             web-9       [001] d..2.   1.000004: sched_wakeup: comm=a pid=10 prio=120 target_cpu=001";
    for bad in ["nonsense", "x", "web-9 [0] 1.0: sched_wakeup: comm=a"] {
        let text = format!("{good}\n{bad}\n{good}\n{bad}\n");
        let Err(ReadError::Syntax { line, .. }) = read(&text) else {
            panic!("{bad}: {:?}", read(&text));
        };
        assert_eq!(line, 2, "{bad}");
        // And the lines after it are lines again.
        let mut reader = Reader::new(text.as_bytes(), Format::Text);
        reader.skip_bad(2);
        let mut events = 0;
        while let Some(item) = reader.next_item().expect("skipped") {
            events += usize::from(matches!(item, Item::Event(_)));
        }
        assert_eq!((events, reader.gaps().skipped), (2, 2), "{bad}");
    }
}
