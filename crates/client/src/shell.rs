//! A client core with its own reactor: the loop shared by the library and the benchmark.

use base::{Duration, Time};
use cluster::message::Failure;
use io::Reactor;
use volume::{ClientCore, Effect, Event, Settings};

use crate::call::{client_reactor, no_reactor};
use crate::config::Config;
use crate::keeper::Keeper;

/// Size of the submission queue: the number of operations that one turn of the loop can start without an
/// extra system call.
const RING_ENTRIES: u32 = 256;

/// How long to wait until a monitor has recorded the end of the sessions. After that time the client exits
/// anyway.
const PARTING_SPAN: Duration = Duration::from_secs(2);

/// The reactor and the core on it.
pub(crate) struct Shell {
    pub(crate) reactor: Reactor,
    core: ClientCore,
    keeper: Keeper,
    events: Vec<io::Event>,
    effects: Vec<Effect>,
}

impl Shell {
    /// Creates the reactor and the core. `client`: the name of the program, for display.
    pub(crate) fn new(config: &Config, client: &str) -> Result<Shell, Failure> {
        let reactor = client_reactor(config, RING_ENTRIES)?;
        let settings = Settings {
            monitors: config.file.monitors.clone(),
            client: client.to_string(),
            pid: std::process::id(),
            host: config.host(),
            address: None,
            retry_for: None,
            unsynced_size_max: volume::UNSYNCED_SIZE_DEFAULT,
        };
        let core = ClientCore::new(settings, reactor.pool().clone());
        // A library does not write to its program's standard error.
        let keeper = Keeper::new(config, |_| {});
        Ok(Shell { reactor, core, keeper, events: Vec::new(), effects: Vec::new() })
    }

    /// Passes an event to the core. Carries out its network effects; appends its other effects to
    /// `answers`.
    pub(crate) fn tell(&mut self, event: Event, answers: &mut Vec<Effect>) {
        let now = self.reactor.now();
        self.apply(now, event, answers);
    }

    /// Waits for the network, a wake-up or `deadline`, and passes the events to the core.
    pub(crate) fn turn(
        &mut self,
        deadline: Option<Time>,
        answers: &mut Vec<Effect>,
    ) -> Result<(), Failure> {
        let own = self.core.deadline();
        let deadline = [own, deadline].into_iter().flatten().min();
        self.reactor.turn(deadline, &mut self.events).map_err(|error| no_reactor(&error))?;
        let now = self.reactor.now();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            if let io::Event::Net(event) = event {
                self.apply(now, Event::Net(event), answers);
            }
        }
        self.events = events;
        if own.is_some_and(|deadline| deadline <= now) {
            self.apply(now, Event::Tick, answers);
        }
        if let Some(addresses) = self.core.take_monitors() {
            self.keeper.update(addresses);
        }
        Ok(())
    }

    /// Waits until a monitor has recorded that the sessions have ended, so that the next client does not
    /// find their volumes in use.
    pub(crate) fn part(&mut self) -> Result<(), Failure> {
        let deadline = self.reactor.now() + PARTING_SPAN;
        while !self.core.is_parted() && self.reactor.now() < deadline {
            self.turn(Some(deadline), &mut Vec::new())?;
        }
        Ok(())
    }

    fn apply(&mut self, now: Time, event: Event, answers: &mut Vec<Effect>) {
        self.core.apply(now, event, &mut self.effects);
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Net(effect) => self.reactor.net(effect),
                // A library has no log; its caller receives errors in the answers.
                Effect::Trace(_) => {}
                answer => answers.push(answer),
            }
        }
    }
}
