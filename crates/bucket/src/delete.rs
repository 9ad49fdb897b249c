//! DELETE. `docs/internals/buckets.md`, rule 11: of a bucket that never had versions, the object goes.

use std::sync::Arc;

use objects::{Assertion, Name, ObjectChange};

use crate::api::{Bucket, Client, Conditions};
use crate::change::{
    Change, Fate, KeyView, StrayView, Verdict, check_unversioned, is_unchanged, judge_change,
    unversioned_key, waste_of,
};
use crate::core::{Core, Result};
use crate::door::Door;
use crate::names::{Key, stray_beside};
use crate::strays;
use crate::views::operation;

struct Delete {
    conditions: Conditions,
    /// Of the stray that names the object's data once no key does.
    stray: u128,
}

impl Change for Delete {
    type Done = ();

    fn judge(&mut self, name: &Name, found: &KeyView, _wall_us: u64) -> Result<Verdict> {
        judge_change(&self.conditions, found)?;
        let Some(seen) = found else { return Ok(Verdict::Nothing) };
        unversioned_key(found, "a DELETE of")?;
        let assertion = Assertion::Version(seen.version);
        let mut remove = operation(name, [assertion], [ObjectChange::Remove]);
        if let Some(garbage) = waste_of(found) {
            remove.objects.push(strays::create(&stray_beside(name, self.stray)?, &garbage));
        }
        Ok(Verdict::Send(remove))
    }

    fn fate(&self, before: &KeyView, now: &KeyView, _stray: &StrayView) -> Fate {
        match now {
            // Whoever removed it: it is gone, as was asked. A condition may not have been true for that one.
            None if !self.is_conditional() => Fate::Done,
            _ if is_unchanged(before, now) => Fate::NotDone,
            _ => Fate::Open,
        }
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn goes_without_look(&self) -> bool {
        false
    }

    fn done(self, _was_new: bool) {}
}

impl<D: Door> Core<D> {
    pub(crate) async fn delete(
        self: &Arc<Self>,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
    ) -> Result<()> {
        let name = bucket.key_name(key)?;
        check_unversioned(bucket)?;
        let bucket = Arc::new(bucket.clone());
        let delete = Delete { conditions: conditions.clone(), stray: self.new_uuid() };
        let commit = self.clone().commit(client.clone(), bucket.clone(), key.clone(), delete);
        self.answer(client, async {
            self.run(&name, commit).await?;
            self.confirm_live(&bucket).await
        })
        .await
    }
}
