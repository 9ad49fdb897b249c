//! One request: sent to etcd, and answered once to the owner.
//!
//! Reads and transactions are sent at most once and fail fast. Idempotent requests (leases, compactions)
//! are repeated until they are answered; if the answer to a grant is lost, that lease expires unused.

use std::rc::Rc;

use base::Duration;
use cluster::state::{
    LeaseId, Operation, RANGE_COUNT_MAX, RangeAnswer, StateEffect, StateEvent, StateRevision,
    Transaction, TransactionOutcome, Unavailable,
};
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};

use super::context::Context;
use super::keys::{number, revision};
use super::link::{Link, Refusal};

/// Carries out an effect and reports the answer.
pub(super) async fn answer(context: Rc<Context>, effect: StateEffect) {
    let event = match effect {
        StateEffect::Range { request, prefix, after, limit } => {
            let result = context.range(&prefix, after, limit).await;
            StateEvent::Range { request, result }
        }
        StateEffect::Transact { request, transaction } => {
            let outcome = context.transact(&transaction).await;
            StateEvent::Transacted { request, outcome }
        }
        StateEffect::LeaseGrant { request, time_to_live } => {
            StateEvent::Lease { request, lease: context.grant(time_to_live).await }
        }
        StateEffect::LeaseRenew { request, lease } => {
            StateEvent::Lease { request, lease: context.renew(lease).await }
        }
        StateEffect::LeaseRevoke { request, lease } => {
            StateEvent::Lease { request, lease: context.revoke(lease).await }
        }
        StateEffect::Compact { request, revision } => {
            context.compact(revision).await;
            StateEvent::Compacted { request }
        }
        StateEffect::Watch { .. } | StateEffect::Unwatch { .. } => {
            unreachable!("watches have tasks of their own")
        }
    };
    context.events.send(event);
}

impl Context {
    async fn range(
        &self,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<RangeAnswer, Unavailable> {
        let link = self.links.soon().await.ok_or(Unavailable)?;
        let (mut begin, end) = self.keys.range(prefix);
        if let Some(after) = after.filter(|after| after.as_str() >= prefix) {
            begin = just_after(self.keys.outer(&after));
        }
        let mut limit = limit.clamp(1, RANGE_COUNT_MAX);
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(limit as i64);
            match link.ask(link.kv().get(begin.clone(), Some(options))).await {
                Ok(answer) => {
                    let entries: Vec<_> =
                        answer.kvs().iter().filter_map(|found| self.keys.entry(found)).collect();
                    let last = answer.kvs().last().map(|last| last.key().to_vec());
                    match last {
                        // The answer has only foreign keys, but the caller needs one of our keys to
                        // continue from.
                        Some(last) if entries.is_empty() && answer.more() => {
                            begin = just_after(last);
                        }
                        _ => {
                            let revision = revision_of(answer.header());
                            return Ok(RangeAnswer { revision, entries, more: answer.more() });
                        }
                    }
                }
                Err(Refusal::AnswerTooLong) if limit > 1 => limit /= 2,
                Err(_) => return Err(Unavailable),
            }
        }
    }

    async fn transact(&self, transaction: &Transaction) -> TransactionOutcome {
        let Some(link) = self.links.soon().await else { return TransactionOutcome::Unknown };
        match link.ask(link.kv().txn(self.wire_form(transaction))).await {
            Ok(answer) if answer.succeeded() => {
                self.events.report_condition(None);
                TransactionOutcome::Committed { revision: revision_of(answer.header()) }
            }
            Ok(_) => TransactionOutcome::Conflict,
            Err(Refusal::LeaseNotFound) => TransactionOutcome::Conflict,
            Err(Refusal::TooLarge(text)) => {
                self.events.report_condition(Some(format!(
                    "etcd refused a transaction ({text}): run it with at least the defaults of \
                     --max-request-bytes and --max-txn-ops"
                )));
                TransactionOutcome::Unknown
            }
            Err(Refusal::NoSpace(text)) => {
                self.events.report_condition(Some(format!(
                    "etcd accepts no writes ({text}): compact and defragment it, or raise \
                     --quota-backend-bytes, then run `etcdctl alarm disarm`"
                )));
                TransactionOutcome::Unknown
            }
            Err(_) => TransactionOutcome::Unknown,
        }
    }

    fn wire_form(&self, transaction: &Transaction) -> Txn {
        let compares = transaction.compares().iter().map(|compare| {
            let key = self.keys.outer(&compare.key);
            Compare::mod_revision(key, CompareOp::Equal, number(compare.revision))
        });
        let operations = transaction.operations().iter().map(|operation| match operation {
            Operation::Put { key, value, lease } => {
                let lease = lease.map_or(0, |lease| lease.0.cast_signed());
                let options = PutOptions::new().with_lease(lease);
                TxnOp::put(self.keys.outer(key), value.as_bytes(), Some(options))
            }
            Operation::Delete { key } => TxnOp::delete(self.keys.outer(key), None),
        });
        let (compares, operations): (Vec<_>, Vec<_>) = (compares.collect(), operations.collect());
        Txn::new().when(compares).and_then(operations)
    }

    async fn grant(&self, time_to_live: Duration) -> Option<LeaseId> {
        let seconds = i64::try_from(time_to_live.as_nanos().div_ceil(1_000_000_000));
        let seconds = seconds.unwrap_or(i64::MAX);
        let granted = self
            .until_answered(async |link| {
                link.ask(link.client().lease_client().grant(seconds, None)).await
            })
            .await;
        granted.ok().map(|lease| LeaseId(lease.id().cast_unsigned()))
    }

    async fn renew(&self, lease: LeaseId) -> Option<LeaseId> {
        let id = lease.0.cast_signed();
        let renewed = self
            .until_answered(async |link| {
                link.ask(link.client().lease_client().keep_alive(id)).await.map(drop)
            })
            .await;
        renewed.ok().map(|()| lease)
    }

    async fn revoke(&self, lease: LeaseId) -> Option<LeaseId> {
        let id = lease.0.cast_signed();
        let revoked = self
            .until_answered(async |link| {
                link.ask(link.client().lease_client().revoke(id)).await.map(drop)
            })
            .await;
        revoked.ok().map(|()| lease)
    }

    /// Compacts up to `revision`, or up to the newest revision if that is older.
    async fn compact(&self, revision: StateRevision) {
        let mut wanted = number(revision);
        loop {
            let compacted = self
                .until_answered(async |link| {
                    link.ask(link.kv().compact(wanted, None)).await.map(drop)
                })
                .await;
            if compacted != Err(Refusal::FutureRevision) {
                return;
            }
            let newest = self
                .until_answered(async |link| {
                    link.ask(link.kv().get(self.keys.outer(""), None)).await
                })
                .await;
            let newest = newest.map(|answer| number(revision_of(answer.header())));
            wanted = newest.unwrap_or(wanted);
        }
    }

    /// Repeats an idempotent request until it is answered.
    async fn until_answered<T>(
        &self,
        attempt: impl AsyncFn(&Link) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        loop {
            let link = self.links.next().await;
            match attempt(&link).await {
                Err(Refusal::Gone) => {}
                answer => return answer,
            }
        }
    }
}

/// Returns the smallest key that is greater than `key`.
fn just_after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> StateRevision {
    revision(header.expect("a link whose answers have no header fails its first probe").revision())
}
