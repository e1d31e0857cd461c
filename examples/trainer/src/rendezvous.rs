use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::Range;

use pollux_agent::Tuning;
use serde::{Deserialize, Serialize};

use crate::group::Member;
use crate::wire::Line;

/// The first words of a process to the rank 0 it is to join.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) generation: u64,
    pub(crate) rank: u32,
    pub(crate) member: Member,
}

/// The answer to an invitation: this process waits for its welcome, whatever else it hears. Without it one could leave for
/// a later generation just when the others count on it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Acceptance;

/// What rank 0 says to those who join.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Address {
    /// Everybody is there: will you stay?
    Invitation,
    Welcome(Welcome),
}

/// The first words of rank 0 to everybody after the group has changed; newcomers get the state of the training with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The newest generation that is complete.
    pub(crate) generation: u64,
    pub(crate) members: Vec<Member>,
    pub(crate) tuning: Tuning,
    /// There is nothing left to train.
    pub(crate) is_done: bool,
}

/// Where the processes of a generation come to join its rank 0. Looking at who came never waits.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    generation: u64,
    listener: TcpListener,
    /// Connected, but silent so far.
    silent: Vec<Line>,
    /// By rank in the new generation.
    arrived: BTreeMap<u32, Arrival>,
}

#[derive(Debug)]
struct Arrival {
    member: Member,
    line: Line,
    invited: bool,
    accepted: bool,
}

impl Rendezvous {
    pub(crate) fn open(generation: u64, host: &str, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { generation, listener, silent: Vec::new(), arrived: BTreeMap::new() })
    }

    /// One of this process's own, for those who reach this machine as `host`: nobody else comes near it where that is only
    /// this machine itself.
    pub(crate) fn open_any(generation: u64, host: &str) -> io::Result<Self> {
        let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let everywhere = if host.contains(':') { "::" } else { "0.0.0.0" };
        Self::open(generation, if is_local { host } else { everywhere }, 0)
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether all of these ranks are there, alive, and have accepted to stay.
    pub(crate) fn complete(&mut self, ranks: Range<u32>) -> bool {
        self.look();
        if !ranks.clone().all(|rank| self.arrived.contains_key(&rank)) {
            return false;
        }
        for (_, arrival) in self.arrived.range_mut(ranks.clone()).filter(|(_, arrival)| !arrival.invited) {
            // Who cannot be reached is missed at the next look.
            arrival.invited = arrival.line.send(&Address::Invitation, &[]).is_ok();
        }
        self.arrived.range(ranks).all(|(_, arrival)| arrival.accepted)
    }

    /// The members that arrived under these ranks, in that order; all must be there.
    pub(crate) fn take(&mut self, ranks: Range<u32>) -> Option<(Vec<Member>, Vec<Line>)> {
        ranks.map(|rank| self.arrived.remove(&rank).map(|arrival| (arrival.member, arrival.line))).collect()
    }

    fn look(&mut self) {
        self.arrived.retain(|_, arrival| match arrival.line.has_message() {
            Ok(false) => true,
            Ok(true) => {
                arrival.accepted = arrival.invited && arrival.line.receive::<Acceptance>().is_ok();
                arrival.accepted
            }
            Err(_) => false,
        });
        // Whatever keeps somebody from being accepted now is over at the next look, or they try again.
        while let Ok((stream, _)) = self.listener.accept() {
            self.silent.extend(Line::new(stream));
        }
        for mut line in std::mem::take(&mut self.silent) {
            match line.has_message() {
                Ok(false) => self.silent.push(line),
                // One that hangs up without a word, or says something else, is none of us.
                Err(_) => {}
                Ok(true) => {
                    let Ok((hello, _)) = line.receive::<Hello>() else { continue };
                    if hello.generation == self.generation {
                        let arrival = Arrival { member: hello.member, line, invited: false, accepted: false };
                        self.arrived.insert(hello.rank, arrival);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn hello(generation: u64, rank: u32) -> Hello {
        Hello { generation, rank, member: Member { replica: u64::from(rank) + 10, local_rank: rank } }
    }

    fn join(port: u16, hello: &Hello) -> Line {
        let mut line = Line::connect("127.0.0.1", port).unwrap();
        line.send(hello, &[]).unwrap();
        line
    }

    fn wait(what: &str, mut look: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !look() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn accept(line: &mut Line) {
        let (Address::Invitation, _) = line.receive().unwrap() else { panic!("a welcome without an invitation") };
        line.send(&Acceptance, &[]).unwrap();
    }

    #[test]
    fn only_living_members_of_the_generation_are_counted() {
        let mut rendezvous = Rendezvous::open_any(3, "127.0.0.1").unwrap();
        let port = rendezvous.port().unwrap();
        let mute = Line::connect("127.0.0.1", port).unwrap();
        let stale = join(port, &hello(2, 1));
        let mut gone = join(port, &hello(3, 1));
        let mut second = join(port, &hello(3, 2));
        wait("the two", || rendezvous.complete(1..3) || rendezvous.arrived.values().all(|arrival| arrival.invited));
        accept(&mut gone);
        assert!(!rendezvous.complete(1..3), "one that has not accepted was counted");
        accept(&mut second);
        wait("their acceptance", || rendezvous.complete(1..3));
        drop(gone);
        wait("the loss", || !rendezvous.complete(1..3));
        assert!(rendezvous.complete(2..3));
        let mut first = join(port, &hello(3, 1));
        wait("the replacement", || !rendezvous.complete(1..3) && rendezvous.arrived.contains_key(&1));
        accept(&mut first);
        wait("its acceptance", || rendezvous.complete(1..3));
        let (members, lines) = rendezvous.take(1..3).unwrap();
        assert_eq!((members[0].replica, members[1].replica, lines.len()), (11, 12, 2));
        drop((mute, stale, first, second));
    }
}
