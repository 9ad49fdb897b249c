//! DELETE. `docs/internals/buckets.md`, rule 11: of a bucket that never had versions, the object goes.

use std::sync::Arc;

use objects::{Assertion, Name, ObjectChange};

use crate::api::{Bucket, Client, Conditions};
use crate::change::{
    Change, Fate, KeyView, SeenKey, StrayView, Verdict, check_unversioned, is_unchanged,
    judge_change,
};
use crate::core::{Core, Result};
use crate::door::Door;
use crate::failure::Failure;
use crate::names::Key;
use crate::strays::{self, Stray};
use crate::views::operation;

struct Delete {
    conditions: Conditions,
    /// Names the object's data once no key does.
    stray: Name,
}

impl Change for Delete {
    type Done = ();

    fn judge(&mut self, name: &Name, found: &KeyView, _wall_us: u64) -> Result<Verdict> {
        judge_change(&self.conditions, found)?;
        let Some(SeenKey { version, head, waste }) = found else { return Ok(Verdict::Nothing) };
        if head.key.has_versions || head.key.is_indexed {
            let what = "a DELETE of a key with versions or tags".into();
            return Err(Failure::NotImplemented { what });
        }
        let assertion = Assertion::Version(*version);
        let mut remove = operation(name, [assertion], [ObjectChange::Remove]);
        if let Some(waste) = waste {
            remove.objects.push(strays::create(&self.stray, &Stray::Garbage(waste.clone())));
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

    fn is_conditional(&self) -> bool {
        self.conditions.if_match.is_some() || self.conditions.if_none_match.is_some()
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
        let stray = self.new_stray(bucket.as_ref(), key)?;
        let delete = Delete { conditions: conditions.clone(), stray };
        let commit = self.clone().commit(client.clone(), bucket.clone(), key.clone(), delete);
        self.answer(client, async {
            self.run(&name, commit).await?;
            self.confirm_live(&bucket).await
        })
        .await
    }
}
