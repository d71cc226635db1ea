use proptest::prelude::*;

use super::*;

const LOST: End = End::Lost { worked: true };

const POLICY: Policy =
    Policy { min: 2, restarts: 2, patience: Nanos(1000), pause: Nanos(10), starting: u32::MAX };

/// A crew whose first members are ready and in the roster.
fn running(seats: u32, asked: u32) -> Crew {
    let mut crew = Crew::new(seats, asked);
    for seat in crew.decide(&POLICY, Nanos(0)).start {
        crew.started(seat, Member(seat));
        crew.ready(seat);
    }
    let (roster, reason) = crew.decide(&POLICY, Nanos(0)).roster.expect("all are there");
    assert_eq!(reason, Reason::First);
    crew.roster = roster;
    crew
}

#[test]
fn the_first_roster_has_all_who_are_on_their_way() {
    let mut crew = Crew::new(4, 3);
    let first = crew.decide(&POLICY, Nanos(0));
    assert_eq!((first.start.as_slice(), &first.roster, first.give_up), ([0, 1, 2].as_slice(), &None, None));
    (0..3).for_each(|seat| crew.started(seat, Member(seat)));
    crew.ready(0);
    crew.ready(2);
    assert_eq!(crew.decide(&POLICY, Nanos(5)).roster, None);
    // One of them dies on its way: the others do not wait for its replacement once nobody is on the way.
    crew.ready(1);
    let (roster, _) = crew.decide(&POLICY, Nanos(6)).roster.expect("all are there");
    assert_eq!(roster, [0, 1, 2]);
}

#[test]
fn a_lost_member_is_out_at_once_and_its_seat_is_filled_after_a_pause() {
    let mut crew = running(3, 3);
    crew.ended(1, LOST, &POLICY, Nanos(100));
    let decision = crew.decide(&POLICY, Nanos(101));
    let reason = Reason::Changed { gone: vec![1], come: vec![] };
    assert_eq!(decision.roster, Some((vec![0, 2], reason)));
    assert_eq!((decision.start, decision.give_up), (vec![], None));
    crew.roster = vec![0, 2];
    assert_eq!(crew.decide(&POLICY, Nanos(109)).start, Vec::<u32>::new());
    assert_eq!(crew.decide(&POLICY, Nanos(110)).start, [1]);
    crew.started(1, Member(7));
    assert_eq!(crew.decide(&POLICY, Nanos(111)), Decision::default());
    crew.ready(1);
    let reason = Reason::Changed { gone: vec![], come: vec![1] };
    assert_eq!(crew.decide(&POLICY, Nanos(112)).roster, Some((vec![0, 1, 2], reason)));
}

#[test]
fn pauses_double_while_nothing_gets_done_and_restarts_come_to_an_end() {
    let mut crew = running(3, 3);
    let mut now = Nanos(0);
    for pause in [20, 40] {
        crew.ended(2, End::Lost { worked: false }, &POLICY, now);
        crew.roster = vec![0, 1];
        assert!(crew.decide(&POLICY, now + Nanos(pause - 1)).start.is_empty());
        now += Nanos(pause);
        assert_eq!(crew.decide(&POLICY, now).start, [2]);
        crew.started(2, Member(9));
        crew.ready(2);
        crew.roster = vec![0, 1, 2];
    }
    crew.ended(2, LOST, &POLICY, now);
    crew.roster = vec![0, 1];
    assert_eq!(crew.decide(&POLICY, now + Nanos(1_000_000)), Decision::default());
    // Asking for more is worth another try.
    crew.ask(3);
    assert_eq!(crew.decide(&POLICY, now).start, [2]);
}

#[test]
fn who_left_by_its_own_wish_is_not_replaced() {
    let mut crew = running(3, 3);
    crew.ended(0, End::Left, &POLICY, Nanos(5));
    let decision = crew.decide(&POLICY, Nanos(1_000));
    assert_eq!((decision.roster.expect("a new one").0, decision.start), (vec![1, 2], vec![]));
    assert_eq!(crew.asked, 2);
}

#[test]
fn fewer_are_dismissed_from_the_end_and_more_are_started() {
    let mut crew = running(4, 3);
    crew.ask(2);
    let (roster, _) = crew.decide(&POLICY, Nanos(1)).roster.expect("a smaller one");
    assert_eq!(roster, [0, 1]);
    crew.ask(4);
    assert_eq!(crew.decide(&POLICY, Nanos(1)).start, [3]);
    crew.started(3, Member(4));
    crew.ask(3);
    assert_eq!(crew.decide(&POLICY, Nanos(1)).dismiss, [3]);
    crew.ask(99);
    assert_eq!(crew.asked, 4);
}

#[test]
fn with_too_few_it_waits_while_somebody_may_come_and_then_gives_up() {
    let mut crew = running(2, 2);
    crew.ended(0, LOST, &POLICY, Nanos(0));
    assert_eq!(crew.decide(&POLICY, Nanos(1)).give_up, None);
    assert_eq!(crew.decide(&POLICY, Nanos(1002)).give_up, Some(Hopeless::TooLong { there: 1 }));
    let mut crew = running(2, 2);
    for _ in 0..3 {
        crew.started(0, Member(0));
        crew.ended(0, LOST, &POLICY, Nanos(0));
    }
    assert_eq!(crew.decide(&POLICY, Nanos(1)).give_up, Some(Hopeless::NobodyComes { there: 1 }));
}

#[test]
fn where_the_first_decides_how_all_compute_it_comes_alone() {
    let policy = Policy { starting: 1, ..POLICY };
    let mut crew = Crew::new(3, 3);
    assert_eq!(crew.decide(&policy, Nanos(0)).start, [0]);
    crew.started(0, Member(0));
    assert!(crew.decide(&policy, Nanos(0)).start.is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Ready(u32),
    End(u32, End),
    Ask(u32),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let end = prop_oneof![4 => Just(LOST), 1 => Just(End::Left), 1 => Just(End::Dismissed)];
    prop_oneof![
        4 => (0..5_u32).prop_map(Event::Ready),
        3 => (0..5_u32, end).prop_map(|(seat, end)| Event::End(seat, end)),
        1 => (1..8_u32).prop_map(Event::Ask),
        2 => (1..50_u64).prop_map(Event::Pass),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_rosters_are_of_the_ready_and_nothing_flaps(events in prop::collection::vec(event(), 0..80)) {
        let mut crew = Crew::new(5, 3);
        let (mut now, mut next, mut generations) = (Nanos(0), 0, 0);
        for event in events {
            match event {
                Event::Ready(seat) => crew.ready(seat),
                Event::End(seat, end) if crew.seats[seat as usize].occupant != Occupant::Nobody => {
                    crew.ended(seat, end, &POLICY, now);
                }
                Event::End(..) => {}
                Event::Ask(count) => crew.ask(count),
                Event::Pass(time) => now += Nanos(time),
            }
            let decision = crew.decide(&POLICY, now);
            // A seat is filled only where nobody sits, and never while it pauses.
            for &seat in &decision.start {
                prop_assert_eq!(crew.seats[seat as usize].occupant, Occupant::Nobody);
                prop_assert!(crew.seats[seat as usize].free_from <= now);
                crew.started(seat, Member(next));
                next += 1;
            }
            if let Some((roster, _)) = decision.roster {
                prop_assert_ne!(&roster, &crew.roster);
                prop_assert!(roster.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(roster.len() as u32 <= crew.asked);
                for &seat in &roster {
                    prop_assert!(matches!(crew.seats[seat as usize].occupant, Occupant::Ready(_)));
                }
                crew.roster = roster;
                generations += 1;
            }
            prop_assert!(crew.staying() <= 5);
            // Decided again at the same time, nothing changes.
            let again = crew.decide(&POLICY, now);
            prop_assert!(again.roster.is_none(), "{:?} flaps after {} rosters", again, generations);
        }
    }
}
