# Multiple imputation by mice and smcfcs of simulated tables, for benchmarks/tables_mi.py.
# Rscript tables_mi.R DESIGN METHOD M IN.csv OUT.csv      IN: column `rep` and the table; OUT: rep, estimate, error, df, fmi
# Rscript tables_mi.R pool - - COMPLETED.csv OUT.csv      mice::pool of lm(x2 ~ x0 + x1) over column `draw`
suppressPackageStartupMessages({library(mice); library(smcfcs); library(survival)})
a <- commandArgs(TRUE); design <- a[1]; method <- a[2]; m <- a[3]; data <- read.csv(a[4]); out <- a[5]

if (design == "pool") {
  fits <- lapply(split(data, data$draw), function(d) lm(y ~ x1 + x2, data = d))
  p <- summary(pool(as.mira(fits)), conf.int = TRUE); q <- pool(as.mira(fits))$pooled
  write.csv(data.frame(estimate = p$estimate, error = p$std.error, df = p$df, p = p$p.value, low = p$`2.5 %`,
                       high = p$`97.5 %`, fmi = q$fmi, riv = q$riv), out, row.names = FALSE)
  quit()
}
m <- as.integer(m)
`%||%` <- function(a, b) if (is.null(a)) b else a
model <- list(linear = "y ~ x1 + x2", binary = "y ~ x + g", quadratic = "y ~ x + I(x^2) + z",
              cox = "Surv(time, event) ~ x1 + x2", mean = "x ~ 1", markers = "Surv(time, event) ~ m1 + m2",
              square = "y ~ x + I(x^2) + z", zeros = "y ~ x + z", small = "x ~ 1", ordinal = "y ~ x + o")[[design]]
holed <- list(linear = c("x1", "x2"), binary = "g", quadratic = "x", cox = "x1", mean = character(0), markers = c("m1", "m2"),
              square = "x", zeros = "x", small = character(0), ordinal = "o")[[design]]
pair <- design %in% c("cox", "markers")
options(contrasts = c("contr.treatment", "contr.treatment"))

analyse <- function(d) {
  if (pair) { s <- summary(coxph(as.formula(model), d))$coefficients; b <- s[, 1]; se <- s[, 3] }
  else { s <- summary(lm(as.formula(model), d))$coefficients; b <- s[, 1]; se <- s[, 2] }
  if (design == "ordinal") d$o <- as.numeric(as.character(d$o))
  for (v in holed) { b <- c(b, mean(d[[v]])); se <- c(se, sd(d[[v]]) / sqrt(nrow(d))) }
  cbind(b, se)
}

complete_tables <- function(d) {
  if (method == "smcfcs") {
    if (design == "ordinal") d$o <- factor(d$o, ordered = TRUE)
    how <- ifelse(colSums(is.na(d)) > 0, list(binary = "logreg", ordinal = "podds")[[design]] %||% "norm", "")
    return(smcfcs(d, if (pair) "coxph" else "lm", model, method = how, m = m, numit = 10, noisy = FALSE)$impDatasets)
  }
  if (design == "binary") d$g <- factor(d$g)
  if (design == "ordinal") d$o <- factor(d$o, ordered = TRUE)
  keep <- d
  if (pair) { keep$time <- nelsonaalen(d, time, event) }
  how <- if (method == "norm") ifelse(sapply(keep, is.factor), if (design == "ordinal") "polr" else "logreg", "norm") else make.method(keep)
  how[colSums(is.na(keep)) == 0] <- ""
  imp <- mice(keep, m = m, method = how, maxit = if (sum(colSums(is.na(keep)) > 0) > 1) 5 else 1, printFlag = FALSE)
  lapply(seq_len(m), function(i) {
    one <- complete(imp, i)
    if (design == "binary") one$g <- as.numeric(as.character(one$g))
    if (pair) one$time <- d$time
    one
  })
}

rows <- list()
for (r in unique(data$rep)) {
  set.seed(r + 1)
  d <- data[data$rep == r, setdiff(names(data), "rep")]
  if (design == "cox") d <- d[!is.na(d$time), ]  # neither takes part-missing follow-up
  done <- tryCatch(suppressWarnings(lapply(complete_tables(d), analyse)), error = function(e) NULL)
  if (is.null(done)) next
  Q <- sapply(done, function(x) x[, 1]); U <- sapply(done, function(x) x[, 2]^2)
  if (is.null(dim(Q))) { Q <- rbind(Q); U <- rbind(U) }
  for (k in seq_len(nrow(Q))) {
    p <- pool.scalar(Q[k, ], U[k, ], n = nrow(d), k = nrow(Q))
    rows[[length(rows) + 1]] <- data.frame(rep = r, place = k, estimate = p$qbar, error = sqrt(p$t), df = p$df, fmi = p$fmi)
  }
}
write.csv(do.call(rbind, rows), out, row.names = FALSE)
