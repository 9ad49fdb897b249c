//! The memory that a request has: shares of that of all requests.

use std::sync::{Arc, Mutex, PoisonError};

use bucket::Kept;

use crate::limits::{Share, Supply};

/// The memory of a request; it is given back when the request is over, and nobody keeps its data any more.
#[derive(Debug)]
pub struct RequestMemory {
    supply: Supply,
    /// The shares, and how many bytes they are.
    taken: Mutex<(Vec<Share>, usize)>,
}

impl RequestMemory {
    /// Takes so many bytes. `None`: fewer are left.
    pub fn take(supply: &Supply, size: usize) -> Option<Arc<RequestMemory>> {
        let taken = Mutex::default();
        let memory = RequestMemory { supply: supply.clone(), taken };
        memory.grow_to(size).then(|| Arc::new(memory))
    }

    /// Returns a memory of nothing, for a request without a body.
    pub fn none() -> Arc<RequestMemory> {
        let memory = RequestMemory { supply: Supply::new(0), taken: Mutex::default() };
        Arc::new(memory)
    }

    /// Takes what is missing to so many bytes. `false`: fewer are left.
    pub fn grow_to(&self, size: usize) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = size.saturating_sub(taken.1);
        let Some(share) = self.supply.take(missing) else { return false };
        taken.0.push(share);
        taken.1 += missing;
        true
    }

    /// Returns what keeps this memory as long as the data of the request is held.
    pub fn kept(self: &Arc<Self>) -> Kept {
        Kept::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_and_is_kept_until_the_data_is_gone() {
        let supply = Supply::new(10);
        let memory = RequestMemory::take(&supply, 4).expect("there are ten");
        assert!(memory.grow_to(3) && memory.grow_to(8));
        assert_eq!(supply.taken(), 8);
        assert!(!memory.grow_to(11));
        assert!(RequestMemory::take(&supply, 3).is_none());
        let kept = memory.kept();
        drop(memory);
        assert_eq!(supply.taken(), 8);
        drop(kept);
        assert_eq!(supply.taken(), 0);
    }
}
