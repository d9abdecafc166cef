//! Flaws of the SQL functions of the store, which the check has to notice.

/// A text of the functions, and the text that replaces it.
pub(crate) struct Flaw {
    name: &'static str,
    sound: &'static str,
    flawed: &'static str,
}

const FLAWS: [Flaw; 9] = [
    // A process that has lost its claim still appends.
    Flaw {
        name: "fence",
        sound: "AND e.revision = after AND (e.holder IS NULL OR e.holder = author OR e.until <= now_at)",
        flawed: "AND (e.revision = after OR after <> 0)",
    },
    // Workers take what others hold.
    Flaw {
        name: "take",
        sound: "AND e.due <= now_at AND (e.until IS NULL OR e.until <= now_at)",
        flawed: "AND (e.due <= now_at OR e.until > now_at)",
    },
    // The holder does not renew its lease.
    Flaw {
        name: "renew",
        sound: "lease_ends := now_at + make_interval(secs => lease);",
        flawed: r#"lease_ends := CASE WHEN lease IS NOT NULL THEN coalesce(
            (SELECT c.until FROM "emitree".entry AS c WHERE c.id = of_id AND c.holder = author),
            now_at + make_interval(secs => lease)) END;"#,
    },
    // An entry is not due when the lease of its process is over.
    Flaw { name: "lease", sound: "until = lease_ends, due = lease_ends,", flawed: "until = lease_ends, due = NULL," },
    // An entry is not due when it is released.
    Flaw {
        name: "release",
        sound: "WHEN lease IS NULL THEN now_at + make_interval(secs => due_in)",
        flawed: "WHEN lease IS NULL THEN NULL",
    },
    // The attempts of workers are not counted.
    Flaw { name: "attempts", sound: "attempts = e.attempts + 1", flawed: "attempts = 1" },
    // An append takes posts that its author has not read.
    Flaw {
        name: "posts",
        sound: r#"IF cardinality(takes) > 0 THEN
                UPDATE "emitree".post AS p SET body = NULL
                    WHERE p.entry = changed.number AND p.id = ANY (takes) AND p.body IS NOT NULL;"#,
        flawed: r#"IF changed.posts > 0 THEN
                UPDATE "emitree".post AS p SET body = NULL
                    WHERE p.entry = changed.number AND p.body IS NOT NULL;"#,
    },
    // The posts of an entry have no order.
    Flaw { name: "order", sound: "WHERE e.id = of_id ORDER BY p.number", flawed: "WHERE e.id = of_id ORDER BY p.crc" },
    // A change is acknowledged before it is on the disk.
    Flaw { name: "disk", sound: "IF current_setting('synchronous_commit') = 'off'", flawed: "IF false" },
];

/// Returns the flaw with a name.
pub(crate) fn find(name: &str) -> Result<&'static Flaw, String> {
    let names = FLAWS.each_ref().map(|flaw| flaw.name).join(", ");
    FLAWS.iter().find(|flaw| flaw.name == name).ok_or_else(|| format!("`{name}` is no flaw: use one of {names}"))
}

impl Flaw {
    /// Returns the SQL with the flaw.
    pub(crate) fn put_into(&self, sql: &str) -> Result<String, String> {
        if sql.matches(self.sound).count() != 1 {
            return Err(format!("the flaw `{}` is out of date: the SQL has not `{}` once", self.name, self.sound));
        }
        Ok(sql.replacen(self.sound, self.flawed, 1))
    }
}
