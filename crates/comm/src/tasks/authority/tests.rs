use super::*;

const SECOND: u64 = 1_000_000_000;

fn policy(min: u32, max: u32, elastic: bool) -> HostPolicy {
    HostPolicy {
        no_guests: false,
        min,
        max,
        elastic,
        patience: Nanos(60 * SECOND),
        grace: Nanos(2 * SECOND),
        returns: Nanos(5 * SECOND),
        doubt: Nanos(SECOND),
        shards: 8,
        asks: false,
    }
}

fn stand(done: u64) -> Stand {
    Stand { done: Some(done), missing: Vec::new(), untested: Vec::new(), passed: true, group: None }
}

fn generation(authority: &Authority) -> u64 {
    authority.roster().generation
}

/// All that were called say how they stand, and go.
fn settle(authority: &mut Authority, done: u64) -> Vec<u32> {
    let places = authority.roster().places.clone();
    let generation = generation(authority);
    for Place { host, .. } in &places {
        authority.hears(*host, Word::Stands { generation, stand: stand(done) }, Nanos(0));
    }
    let orders = authority.take_orders();
    let gone = orders.iter().filter(|(_, order)| matches!(order, Order::Go { .. })).count();
    assert_eq!(gone, places.len(), "{orders:?}");
    places.iter().map(|place| place.end).collect()
}

fn running(hosts: u32, policy: HostPolicy) -> Authority {
    let mut authority = Authority::new(policy, Host(0), Nanos(0));
    (0..hosts).for_each(|host| authority.joins(Host(host), "a", 4, Nanos(1)));
    authority.tend(Nanos(3 * SECOND));
    settle(&mut authority, 0);
    authority
}

#[test]
fn nothing_begins_before_all_are_there_and_have_said_how_they_stand() {
    let mut authority = Authority::new(policy(2, 2, false), Host(0), Nanos(0));
    authority.joins(Host(0), "a", 4, Nanos(0));
    assert!(authority.take_orders().is_empty());
    authority.joins(Host(1), "a", 4, Nanos(0));
    assert_eq!(authority.take_orders().len(), 2);
    let first = Word::Stands { generation: 1, stand: stand(0) };
    authority.hears(Host(0), first, Nanos(0));
    assert!(authority.take_orders().is_empty());
    assert_eq!(settle(&mut authority, 0), [4, 8]);
}

#[test]
fn too_few_hosts_end_it_after_a_while_and_the_reason_has_their_number() {
    let mut authority = Authority::new(policy(2, 2, false), Host(0), Nanos(0));
    authority.joins(Host(0), "a", 4, Nanos(0));
    authority.tend(Nanos(61 * SECOND));
    let orders = authority.take_orders();
    assert!(
        matches!(&orders[..], [(_, Order::End(why))] if why.contains("only 1 of at least 2 hosts came")),
        "{orders:?}"
    );
}

#[test]
fn a_host_that_is_getting_ready_keeps_its_place_and_is_waited_for() {
    let mut authority = Authority::new(policy(2, 2, false), Host(0), Nanos(0));
    authority.joins(Host(0), "a", 4, Nanos(1));
    assert!(authority.has_room(0) && !authority.has_room(1));
    authority.expects(Nanos(59 * SECOND));
    authority.tend(Nanos(61 * SECOND));
    assert!(!authority.is_over());
    authority.tend(Nanos(120 * SECOND));
    assert!(authority.is_over());
}

#[test]
fn a_lost_host_ends_a_training_that_is_not_elastic() {
    let mut authority = running(2, policy(2, 2, false));
    authority.loses(Host(1), "its connection was closed", Nanos(9));
    let orders = authority.take_orders();
    assert!(
        matches!(&orders[..], [(Host(0), Order::End(why))] if why.contains("host 1 (a) was lost")),
        "{orders:?}"
    );
}

#[test]
fn an_elastic_training_goes_on_without_it_by_a_new_roster() {
    let mut authority = running(3, policy(1, 3, true));
    authority.loses(Host(1), "killed", Nanos(9));
    assert!(authority.roster().is_loss);
    assert_eq!(settle(&mut authority, 5), [4, 8]);
    assert_eq!(generation(&authority), 2);
}

#[test]
fn words_of_an_old_roster_are_not_heard() {
    let mut authority = running(3, policy(1, 3, true));
    authority.loses(Host(2), "killed", Nanos(9));
    authority.take_orders();
    for host in [0, 1] {
        authority.hears(Host(host), Word::Stands { generation: 1, stand: stand(5) }, Nanos(9));
    }
    authority.hears(Host(0), Word::Misses { generation: 1, host: Host(1), why: String::new() }, Nanos(9));
    assert!(authority.take_orders().is_empty());
    assert_eq!(authority.roster().places.len(), 2);
}

#[test]
fn a_newcomer_is_a_guest_until_it_has_caught_up_and_all_hold() {
    let mut authority = running(1, policy(1, 2, true));
    authority.joins(Host(4), "a", 4, Nanos(9));
    assert_eq!(settle(&mut authority, 7), [8, 8]);
    authority.hears(Host(4), Word::CaughtUp, Nanos(9));
    let asked: Vec<_> = authority.take_orders();
    assert_eq!(asked, [(Host(0), Order::Limit), (Host(4), Order::Limit)]);
    authority.hears(Host(0), Word::CanHold(10), Nanos(9));
    authority.hears(Host(4), Word::CanHold(11), Nanos(9));
    let held: Vec<_> = authority.take_orders();
    assert_eq!(held, [(Host(0), Order::Hold(11)), (Host(4), Order::Hold(11))]);
    authority.hears(Host(0), Word::Holds(11), Nanos(9));
    authority.hears(Host(4), Word::Holds(11), Nanos(9));
    assert_eq!(settle(&mut authority, 11), [4, 8]);
}

/// Its rosters are to be granted; one host trains, and a guest has caught up with it.
fn with_guest_to_be_granted() -> Authority {
    let mut authority = Authority::new(HostPolicy { asks: true, ..policy(1, 2, true) }, Host(0), Nanos(0));
    authority.joins(Host(0), "a", 4, Nanos(0));
    authority.tend(Nanos(3 * SECOND));
    authority.grant(1, Nanos(3 * SECOND));
    settle(&mut authority, 0);
    authority.joins(Host(4), "a", 4, Nanos(4 * SECOND));
    authority.grant(2, Nanos(4 * SECOND));
    settle(&mut authority, 7);
    authority.hears(Host(4), Word::CaughtUp, Nanos(5 * SECOND));
    authority
}

#[test]
fn nobody_stands_still_for_a_roster_that_is_not_granted() {
    let mut authority = with_guest_to_be_granted();
    // Much longer than its patience: work goes on by the roster it has.
    authority.tend(Nanos(500 * SECOND));
    assert!(authority.take_orders().is_empty() && !authority.is_over());
    authority.grant(3, Nanos(501 * SECOND));
    assert_eq!(authority.take_orders(), [(Host(0), Order::Limit), (Host(4), Order::Limit)]);
    for host in [Host(0), Host(4)] {
        authority.hears(host, Word::CanHold(90), Nanos(502 * SECOND));
    }
    for host in [Host(0), Host(4)] {
        authority.hears(host, Word::Holds(90), Nanos(503 * SECOND));
    }
    assert_eq!(generation(&authority), 3);
    assert_eq!(settle(&mut authority, 90), [4, 8]);
}

#[test]
fn a_granted_roster_is_not_gone_over_to_when_a_host_is_lost_before_all_hold() {
    let mut authority = with_guest_to_be_granted();
    authority.grant(3, Nanos(6 * SECOND));
    authority.loses(Host(4), "killed", Nanos(7 * SECOND));
    authority.take_orders();
    // Its number is spent.
    authority.grant(4, Nanos(8 * SECOND));
    assert_eq!((generation(&authority), settle(&mut authority, 9)), (4, vec![8]));
}

#[test]
fn where_nobody_works_a_roster_must_be_granted_in_time() {
    let policy = HostPolicy { asks: true, no_guests: true, ..policy(1, 1, true) };
    let mut authority = Authority::new(policy, Host(0), Nanos(0));
    authority.joins(Host(0), "a", 4, Nanos(0));
    authority.grant(1, Nanos(0));
    settle(&mut authority, 0);
    authority.hears(Host(0), Word::Breaks { generation: 1 }, Nanos(SECOND));
    authority.tend(Nanos(30 * SECOND));
    assert!(!authority.is_over());
    authority.tend(Nanos(62 * SECOND));
    assert!(authority.is_over());
}

#[test]
fn of_two_that_cannot_reach_each_other_the_later_one_goes() {
    let mut authority = running(3, policy(1, 3, true));
    authority.hears(Host(1), Word::Misses { generation: 1, host: Host(2), why: "cut".into() }, Nanos(9));
    assert!(authority.take_orders().is_empty(), "whoever is gone may be heard to be");
    authority.tend(Nanos(2 * SECOND));
    let orders = authority.take_orders();
    assert!(orders.iter().any(|(host, order)| *host == Host(2) && matches!(order, Order::End(_))));
    assert_eq!(settle(&mut authority, 5), [4, 8]);
}

#[test]
fn a_host_that_is_gone_is_not_taken_for_one_that_misses_it() {
    let mut authority = running(3, policy(1, 3, true));
    let word = Word::Misses { generation: 1, host: Host(1), why: "reset".into() };
    authority.hears(Host(2), word, Nanos(9));
    authority.loses(Host(1), "it closed the connection", Nanos(10));
    authority.tend(Nanos(3 * SECOND));
    assert_eq!(authority.hosts().collect::<Vec<_>>(), [Host(0), Host(2)]);
}

#[test]
fn a_guest_stays_one_when_the_host_before_it_is_lost() {
    let mut authority = running(2, policy(1, 3, true));
    authority.joins(Host(2), "a", 4, Nanos(9));
    assert_eq!(settle(&mut authority, 5), [4, 8, 8]);
    authority.loses(Host(1), "killed", Nanos(9));
    assert_eq!(settle(&mut authority, 5), [8, 8]);
}

#[test]
fn a_host_that_comes_too_late_does_not_keep_the_others_from_ending() {
    let mut authority = running(2, policy(1, 3, true));
    authority.hears(Host(0), Word::Finished, Nanos(9));
    assert!(!authority.has_room(0));
    authority.joins(Host(2), "a", 4, Nanos(9));
    authority.hears(Host(1), Word::Finished, Nanos(9));
    let orders = authority.take_orders();
    assert!(
        matches!(&orders[..], [(_, Order::Bye), (_, Order::Bye), (Host(2), Order::End(_))]),
        "{orders:?}"
    );
}

#[test]
fn hosts_that_were_told_to_hold_can_go_on_to_the_end() {
    let mut authority = running(1, policy(1, 2, true));
    authority.joins(Host(4), "a", 4, Nanos(9));
    settle(&mut authority, 7);
    authority.hears(Host(4), Word::CaughtUp, Nanos(9));
    authority.hears(Host(0), Word::CanHold(12), Nanos(9));
    // All it has to do are 12 steps.
    authority.hears(Host(0), Word::Finished, Nanos(9));
    authority.take_orders();
    authority.hears(Host(4), Word::CanHold(11), Nanos(9));
    assert_eq!(authority.take_orders(), [(Host(0), Order::Hold(12)), (Host(4), Order::Hold(12))]);
}

#[test]
fn below_the_least_number_it_waits_and_whoever_comes_then_completes_it() {
    let mut authority = running(2, policy(2, 3, true));
    authority.loses(Host(1), "killed", Nanos(9));
    assert!(authority.take_orders().is_empty());
    authority.joins(Host(2), "a", 4, Nanos(10));
    assert_eq!(settle(&mut authority, 5), [8, 8]);
}

#[test]
fn it_is_over_when_all_have_finished_and_nobody_joins_then() {
    let mut authority = running(2, policy(1, 3, true));
    authority.hears(Host(0), Word::Finished, Nanos(9));
    assert!(authority.take_orders().is_empty());
    authority.hears(Host(1), Word::Finished, Nanos(9));
    assert_eq!(authority.take_orders(), [(Host(0), Order::Bye), (Host(1), Order::Bye)]);
    assert!(authority.is_over() && !authority.has_room(0));
}

#[test]
fn a_host_lost_while_a_roster_is_called_makes_another_one() {
    let mut authority = running(3, policy(1, 3, true));
    authority.loses(Host(2), "killed", Nanos(9));
    authority.take_orders();
    authority.loses(Host(1), "killed too", Nanos(9));
    assert_eq!(settle(&mut authority, 5), [8]);
    assert_eq!(generation(&authority), 3);
}

proptest::proptest! {
    /// Whatever hosts say, in whatever order: no panic, orders only to hosts that there are, and shards dealt to all of a roster.
    #[test]
    fn no_word_makes_the_authority_deal_wrongly(
        words in proptest::collection::vec((0..5_u32, 0..12_u8, 0..6_u64, proptest::prelude::any::<u64>()), 0..120),
        min in 1..3_u32,
        max in 3..5_u32,
        elastic in proptest::bool::ANY,
    ) {
        let mut authority = Authority::new(policy(min, max, elastic), Host(0), Nanos(0));
        authority.joins(Host(0), "a", 1, Nanos(0));
        let mut now = 0;
        let mut known = vec![Host(0)];
        for (from, kind, small, any) in words {
            now += small * SECOND / 2;
            let (host, at) = (Host(from), Nanos(now));
            let generation = if any.is_multiple_of(3) { any } else { authority.roster().generation };
            let missing = vec![(small as u32, any as u32)];
            let odd = Stand { done: Some(any), missing, untested: vec![any as u32], passed: false, group: None };
            match kind {
                0 | 1 if !known.contains(&host) && authority.has_room(0) => {
                    known.push(host);
                    authority.joins(host, "b", any as u32, at);
                }
                2 if host != Host(0) => authority.loses(host, "it is gone", at),
                3 => authority.hears(host, Word::Stands { generation, stand: odd }, at),
                4 => authority.hears(host, Word::Misses { generation, host: Host(small as u32), why: "w".into() }, at),
                5 => authority.hears(host, Word::CaughtUp, at),
                6 => authority.hears(host, Word::CanHold(any), at),
                7 => authority.hears(host, Word::Holds(if any.is_multiple_of(2) { any } else { small }), at),
                8 => authority.hears(host, Word::Finished, at),
                9 if host != Host(0) => authority.hears(host, Word::Leaves("l".into()), at),
                10 => authority.hears(host, Word::Stands { generation, stand: stand(small) }, at),
                _ => authority.tend(at),
            }
            for (host, order) in authority.take_orders() {
                proptest::prop_assert!(known.contains(&host), "{order:?} for {host:?}");
                if let Order::Call(roster) = order {
                    let ends = roster.ends();
                    proptest::prop_assert!(ends.is_sorted() && ends.last() == Some(&8) && ends[0] > 0, "{ends:?}");
                }
            }
            authority.take_decided();
        }
    }
}

#[test]
fn a_group_that_has_lost_a_member_is_called_anew_with_the_same_hosts() {
    let mut authority = running(2, HostPolicy { no_guests: true, ..policy(2, 2, true) });
    authority.hears(Host(1), Word::Breaks { generation: 7 }, Nanos(9));
    assert_eq!(generation(&authority), 1, "that is another roster");
    authority.hears(Host(1), Word::Breaks { generation: 1 }, Nanos(9));
    assert_eq!(generation(&authority), 2);
    authority.hears(Host(0), Word::Breaks { generation: 1 }, Nanos(9));
    assert_eq!(generation(&authority), 2, "both have lost the same group");
    assert_eq!(authority.take_orders().len(), 2);
    assert_eq!(settle(&mut authority, 5), [4, 8]);
}

#[test]
fn a_broken_group_of_a_training_that_is_not_elastic_is_not_called_anew() {
    let mut authority = running(2, HostPolicy { no_guests: true, ..policy(2, 2, false) });
    authority.hears(Host(1), Word::Breaks { generation: 1 }, Nanos(9));
    assert_eq!(generation(&authority), 1);
}

#[test]
fn without_guests_whoever_replaces_a_lost_host_has_shards_at_once() {
    let mut authority = running(2, HostPolicy { no_guests: true, ..policy(2, 2, true) });
    authority.loses(Host(1), "killed", Nanos(9));
    assert!(authority.waits(), "nobody goes on without it");
    authority.joins(Host(2), "b", 4, Nanos(10));
    assert_eq!(settle(&mut authority, 5), [4, 8]);
    let hosts: Vec<Host> = authority.roster().places.iter().map(|place| place.host).collect();
    assert_eq!(hosts, [Host(0), Host(2)]);
}
