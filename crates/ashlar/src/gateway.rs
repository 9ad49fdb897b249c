//! `ashlar gateway`, `ashlar user` and `ashlar bucket`: buckets and those who use them; the crate `gateway` does the
//! work.

use std::time::Duration;

use base::TraceEvent;
use bucket::{AccessKey, Bucket, CannedAcl, Client, User};
use client::Config;
use cluster::message::{Command, Failure};
use gateway::{Limits, Offline, Settings, TlsFiles};
use serde_json::{Value, json};

use crate::call::call;
use crate::cli::{AclArg, BucketCommand, GatewayArgs, KeyCommand, UserCommand};
use crate::output::{Column, Format, column, failure, print_json, print_object, print_rows};

/// Time limit for the check of the pool before serving; a sixth of it is for connecting to a monitor.
const LOOK_TIME_MAX: Duration = Duration::from_secs(12);
/// Users, or buckets, of a page.
const PAGE_COUNT: usize = 1000;

const USER: &[Column] = &[column("NAME", "name"), column("CREATED", "created")];

const KEY: &[Column] =
    &[column("ACCESS KEY", "access_key"), column("USER", "user"), column("CREATED", "created")];

/// A key with its secret.
const NEW_KEY: &[Column] = &[
    column("USER", "name"),
    column("ACCESS KEY", "access_key"),
    column("SECRET KEY", "secret_key"),
];

const BUCKET: &[Column] = &[
    column("NAME", "name"),
    column("OWNER", "owner"),
    column("ACL", "acl"),
    column("SPREAD", "spread"),
    column("CREATED", "created"),
];

/// Runs a gateway until it receives a signal to stop.
///
/// Errors: `not_found` (there is no such pool), `invalid` (it is of the other kind), `untrusted` (the key
/// belongs to another cluster), `io`, `tls`.
pub fn run(config: &Config, args: GatewayArgs) -> Result<(), Failure> {
    let warning = check_pools(config, &args.index_pool, args.data_pool.as_deref())?;
    args.log.start("gateway");
    warning.iter().for_each(io::log::write);
    let files = |(certificate, key)| TlsFiles { certificate, key };
    let settings = Settings {
        listen: args.listen,
        index_pool: args.index_pool,
        data_pool: args.data_pool,
        inline_max: args.inline_max.0,
        region: args.region,
        domains: args.domain,
        tls: args.tls_cert.zip(args.tls_key).map(files),
        threads: usize::from(args.threads),
        limits: Limits::default(),
    };
    gateway::run(config, settings)
}

/// Refuses an index pool that is no pool of objects, and a data pool that is no pool of volumes. If the
/// cluster is down, the gateway starts anyway and its clients are told to come back; then returns a warning
/// to log.
fn check_pools(
    config: &Config,
    index: &str,
    data: Option<&str>,
) -> Result<Option<TraceEvent>, Failure> {
    let pools = match client::call(config, Command::PoolList, LOOK_TIME_MAX) {
        Ok(pools) => pools,
        Err(error) if crate::status::is_passing(&error) => {
            let what = "no answer from the cluster: requests fail until it answers";
            return Ok(Some(TraceEvent::warn(what).with("why", &error.message)));
        }
        Err(error) => return Err(error),
    };
    check_index_pool(&pools, index)?;
    data.map_or(Ok(()), |name| check_data_pool(&pools, name)).map(|()| None)
}

fn pool_named<'a>(pools: &'a Value, name: &str) -> Option<&'a Value> {
    pools.as_array()?.iter().find(|pool| pool["name"] == name)
}

fn check_data_pool(pools: &Value, name: &str) -> Result<(), Failure> {
    match pool_named(pools, name) {
        Some(pool) if pool["kind"] == "block" => Ok(()),
        Some(_) => Err(failure(
            "invalid",
            format!("{name} is a pool of objects"),
            "choose a pool of volumes with --data-pool",
        )),
        None => Err(failure(
            "not_found",
            format!("there is no pool {name}"),
            format!("create it: ashlar pool create {name}"),
        )),
    }
}

fn check_index_pool(pools: &Value, name: &str) -> Result<(), Failure> {
    match pool_named(pools, name) {
        Some(pool) if pool["kind"] == "object" => Ok(()),
        Some(_) => Err(failure(
            "invalid",
            format!("{name} is a pool of volumes"),
            "choose a pool of objects with --index-pool",
        )),
        None => Err(failure(
            "not_found",
            format!("there is no pool {name}"),
            format!("create it: ashlar pool create {name} --kind object --grouped --shards 4096"),
        )),
    }
}

/// Opens the buckets of a cluster, for a command.
fn open(config: &Config, format: Format, pool: &str) -> Result<Offline, Failure> {
    // The gateway's logic waits for a monitor; a command fails if none answers, and this one says why.
    check_index_pool(&call(config, format, Command::PoolList)?, pool)?;
    Offline::open(config, pool)
}

/// Returns what to say of a request that failed.
fn failed(error: bucket::Failure) -> Failure {
    use bucket::Failure as Why;
    let message = error.to_string();
    let (code, hint) = match error {
        Why::NoSuchBucket => ("not_found", "`ashlar bucket ls` lists the buckets"),
        Why::BucketTaken | Why::BucketOwned => ("exists", "choose another name"),
        Why::BucketNotEmpty => ("not_empty", "remove its objects first: aws s3 rm --recursive"),
        Why::Full => ("full", "add OSDs, or remove what is not needed"),
        Why::Damaged { .. } => ("damaged", "`ashlar status` shows what is damaged"),
        Why::Unavailable { .. } => {
            ("unavailable", "`ashlar status` shows the state of the cluster; try again")
        }
        Why::Conflict => ("changed", "try again"),
        _ => ("invalid", "`ashlar user --help` and `ashlar bucket --help` have examples"),
    };
    failure(code, message, hint)
}

/// Runs `ashlar user`.
pub fn user(config: &Config, command: UserCommand, format: Format) -> Result<(), Failure> {
    match command {
        UserCommand::Create { name, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            let buckets = open.buckets();
            open.wait(buckets.create_user(&name)).map_err(failed)?;
            let (key, secret) = open.wait(buckets.add_key(&name)).map_err(failed)?;
            print_object(format, &new_key_row(&key, &secret), NEW_KEY)
        }
        UserCommand::Ls { pool } => {
            let open = open(config, format, &pool.index_pool)?;
            let rows: Vec<Value> = users(&open)?.iter().map(user_row).collect();
            print_rows(format, &rows.into(), USER, "no users")
        }
        UserCommand::Rm { name, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            open.wait(open.buckets().remove_user(&name)).map_err(failed)
        }
        UserCommand::Key(KeyCommand::Add { user, pool }) => {
            let open = open(config, format, &pool.index_pool)?;
            let (key, secret) = open.wait(open.buckets().add_key(&user)).map_err(failed)?;
            print_object(format, &new_key_row(&key, &secret), NEW_KEY)
        }
        UserCommand::Key(KeyCommand::Ls { user, pool }) => {
            let open = open(config, format, &pool.index_pool)?;
            let keys = open.wait(open.buckets().keys(&user)).map_err(failed)?;
            let rows: Vec<Value> = keys.iter().map(key_row).collect();
            print_rows(format, &rows.into(), KEY, "no access keys")
        }
        UserCommand::Key(KeyCommand::Rm { key, pool }) => {
            let open = open(config, format, &pool.index_pool)?;
            open.wait(open.buckets().remove_key(&key)).map_err(failed)
        }
    }
}

fn users(open: &Offline) -> Result<Vec<User>, Failure> {
    let (mut users, mut after) = (Vec::new(), None);
    loop {
        let page = open.buckets().users(after.as_deref(), PAGE_COUNT);
        let (more, next) = open.wait(page).map_err(failed)?;
        users.extend(more);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(users),
        }
    }
}

fn time_of(ms: u64) -> String {
    io::log::time_text(ms)
}

fn user_row(user: &User) -> Value {
    json!({ "name": user.name, "created": time_of(user.created_ms) })
}

fn key_row(key: &AccessKey) -> Value {
    json!({ "access_key": key.id, "user": key.user, "created": time_of(key.created_ms) })
}

fn new_key_row(key: &AccessKey, secret: &str) -> Value {
    json!({ "name": key.user, "access_key": key.id, "secret_key": secret })
}

/// Runs `ashlar bucket`.
pub fn bucket(config: &Config, command: BucketCommand, format: Format) -> Result<(), Failure> {
    let client = Client::new();
    match command {
        BucketCommand::Create { name, owner, acl, spread, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            if !users(&open)?.iter().any(|user| user.name == owner) {
                let message = format!("there is no user {owner}");
                return Err(failure("not_found", message, "`ashlar user ls` lists the users"));
            }
            let acl = match acl {
                AclArg::Private => CannedAcl::Private,
                AclArg::PublicRead => CannedAcl::PublicRead,
            };
            let create = open.buckets().create_bucket(&client, &name, &owner, acl, spread);
            let bucket = open.wait(create).map_err(failed)?;
            match format {
                Format::Json => print_json(&bucket_row(&bucket)),
                Format::Text => print_line!("created bucket {name}"),
            }
        }
        BucketCommand::Ls { owner, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            let owners = match owner {
                Some(owner) => vec![owner],
                None => users(&open)?.into_iter().map(|user| user.name).collect(),
            };
            let mut rows = Vec::new();
            for owner in owners {
                rows.extend(buckets_of(&open, &owner)?);
            }
            print_rows(format, &rows.into(), BUCKET, "no buckets")
        }
        BucketCommand::Info { name, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            let bucket = open.wait(open.buckets().bucket(&name)).map_err(failed)?;
            print_object(format, &bucket_row(&bucket), BUCKET)
        }
        BucketCommand::Rm { name, pool } => {
            let open = open(config, format, &pool.index_pool)?;
            open.wait(open.buckets().delete_bucket(&client, &name)).map_err(failed)
        }
    }
}

fn buckets_of(open: &Offline, owner: &str) -> Result<Vec<Value>, Failure> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = open.buckets().list_buckets(owner, "", after.as_deref(), PAGE_COUNT);
        let (buckets, next) = open.wait(page).map_err(failed)?;
        rows.extend(buckets.iter().map(|bucket| bucket_row(bucket)));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(rows),
        }
    }
}

fn bucket_row(bucket: &Bucket) -> Value {
    let acl = match bucket.acl {
        CannedAcl::Private => "private",
        CannedAcl::PublicRead => "public-read",
    };
    json!({
        "name": bucket.name,
        "id": bucket.id.to_string(),
        "owner": bucket.owner,
        "acl": acl,
        "spread": bucket.spread,
        "created": time_of(bucket.created_ms),
    })
}

/// Creates the first user of a cluster, and returns its access key and secret. An earlier attempt may have
/// made the user, and keys whose secrets nobody knows.
pub fn first_user(config: &Config, pool: &str) -> Result<(String, String), Failure> {
    const NAME: &str = "admin";
    let open = Offline::open(config, pool)?;
    if !users(&open)?.iter().any(|user| user.name == NAME) {
        open.wait(open.buckets().create_user(NAME)).map_err(failed)?;
    }
    let (key, secret) = open.wait(open.buckets().add_key(NAME)).map_err(failed)?;
    Ok((key.id, secret))
}
