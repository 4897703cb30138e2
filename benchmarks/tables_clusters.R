# Clustered tables completed by mice (2l.pan, 2lonly.pmm) or jomo, analysed by lme4, for benchmarks/tables_clusters.py.
# Rscript tables_clusters.R METHOD M IN.csv OUT.csv     IN: rep, centre, y, x1, x2, w; OUT: rep, draw, place, estimate, error
# Rscript tables_clusters.R export - - FOLDER            popmis and toenail as CSV, of the latter a row per planned visit
# Rscript tables_clusters.R popmis METHOD M OUT.csv      an analysis of mice, jomo, or the complete rows; or of FILE.csv,
# Rscript tables_clusters.R toenail METHOD M OUT.csv     tables that were completed elsewhere (column draw)
suppressPackageStartupMessages({library(mice); library(jomo); library(lme4)})
a <- commandArgs(TRUE); method <- a[1]

analysis <- function(d, formula) {
  fit <- suppressMessages(suppressWarnings(lmer(formula, d)))
  v <- as.data.frame(VarCorr(fit))$vcov
  rbind(cbind(fixef(fit), sqrt(diag(as.matrix(vcov(fit))))), c(v[1] / sum(v), NA))
}
by_mice <- function(d, cluster, one, two, m, maxit = 5) {  # one, two: columns of level one and two
  d[[cluster]] <- as.integer(factor(d[[cluster]]))
  how <- make.method(d); how[] <- ""
  predict <- matrix(0, ncol(d), ncol(d), dimnames = list(names(d), names(d)))
  for (v in names(d)[colSums(is.na(d)) > 0]) {
    how[v] <- if (v %in% two) "2lonly.pmm" else "2l.pan"
    predict[v, setdiff(one, v)] <- if (v %in% two) 1 else 3
    predict[v, setdiff(two, v)] <- 1
    predict[v, cluster] <- -2
  }
  imp <- mice(d, m = m, maxit = maxit, method = how, predictorMatrix = predict, printFlag = FALSE, paniter = 100)
  lapply(seq_len(m), function(i) complete(imp, i))
}
by_jomo <- function(d, cluster, one, two, m) {
  clus <- data.frame(clus = as.integer(factor(d[[cluster]])))
  y2 <- if (length(two)) d[, two, drop = FALSE] else NULL
  out <- if (is.null(y2)) jomo(d[, one, drop = FALSE], clus = clus, nburn = 500, nbetween = 50, nimp = m, output = 0)
    else jomo(d[, one, drop = FALSE], Y2 = y2, clus = clus, nburn = 500, nbetween = 50, nimp = m, output = 0)
  lapply(split(out, out$Imputation)[-1], function(t) { t[[cluster]] <- t$clus; t })
}

planned <- function() {
  d <- expand.grid(visit = 1:7, patientID = as.integer(levels(toenail2$patientID)))
  k <- match(paste(d$patientID, d$visit), paste(toenail2$patientID, toenail2$visit))
  d$outcome <- as.integer(toenail2$outcome[k]) - 1L
  d$treatment <- as.integer(toenail2$treatment[match(d$patientID, toenail2$patientID)]) - 1L  # 1: terbinafine
  d$product <- d$visit * d$treatment
  d
}
if (method == "export") {
  write.csv(popmis[, c("school", "popular", "sex", "texp", "teachpop")], file.path(a[4], "popmis.csv"), row.names = FALSE, na = "")
  write.csv(planned(), file.path(a[4], "toenail.csv"), row.names = FALSE, na = "")
  quit()
}
given <- function(file) { d <- read.csv(file); lapply(split(d, d$draw), function(t) t[, names(t) != "draw"]) }
save_rows <- function(done, file) write.csv(do.call(rbind, lapply(seq_along(done), function(i)
  data.frame(draw = i, place = seq_len(nrow(done[[i]])), estimate = done[[i]][, 1], error = done[[i]][, 2]))), file, row.names = FALSE)
if (method == "toenail") {
  set.seed(1); m <- as.integer(a[3]); d <- planned()
  tables <- if (a[2] == "mice") {
    p <- matrix(0, 5, 5, dimnames = list(names(d), names(d)))
    p["outcome", ] <- c(1, -2, 0, 1, 1)  # visit, patientID, outcome, treatment, product
    imp <- mice(d, m = m, maxit = 1, method = ifelse(names(d) == "outcome", "2l.bin", ""), predictorMatrix = p, printFlag = FALSE)
    lapply(seq_len(m), function(i) complete(imp, i))
  } else if (a[2] == "jomo") {
    x <- cbind(const = 1, d[, c("visit", "treatment", "product")])
    out <- jomo(data.frame(outcome = factor(d$outcome)), X = x, clus = data.frame(clus = d$patientID), nburn = 1000, nbetween = 200, nimp = m, output = 0)
    lapply(split(out, out$Imputation)[-1], function(t) { t$outcome <- as.integer(as.character(t$outcome)); t$patientID <- t$clus; t })
  } else if (a[2] == "rows") list(na.omit(d)) else given(a[2])
  save_rows(lapply(tables, function(t) {
    fit <- glm(outcome ~ treatment + visit + product, binomial, t)
    summed <- rowsum(model.matrix(fit) * (fit$y - fitted(fit)), t$patientID); g <- nrow(summed)
    mixed <- suppressWarnings(glmer(outcome ~ treatment + visit + product + (1 | patientID), t, family = binomial, nAGQ = 9))
    rbind(cbind(coef(fit), sqrt(diag(vcov(fit) %*% crossprod(summed) %*% vcov(fit)) * g / (g - 1))),
          cbind(fixef(mixed), sqrt(diag(as.matrix(vcov(mixed))))), c(as.data.frame(VarCorr(mixed))$vcov, NA))
  }), a[4]); quit()
}
if (method == "popmis") {
  set.seed(1); m <- as.integer(a[3])
  d <- popmis[, c("school", "popular", "sex", "texp", "teachpop")]
  tables <- if (a[2] == "mice") by_mice(d, "school", c("popular", "sex", "teachpop"), "texp", m)
    else if (a[2] == "jomo") by_jomo(d, "school", c("popular", "sex", "teachpop"), "texp", m)
    else if (a[2] == "rows") list(na.omit(d)) else given(a[2])
  save_rows(lapply(tables, analysis, popular ~ sex + texp + (1 | school)), a[4]); quit()
}
m <- as.integer(a[2]); data <- read.csv(a[3]); rows <- list()
for (r in unique(data$rep)) {
  set.seed(r + 1)
  d <- data[data$rep == r, setdiff(names(data), "rep")]
  d$w <- factor(d$w, levels = c("no", "yes"))
  done <- tryCatch({
    tables <- if (method == "mice") {
      d$w <- as.numeric(d$w) - 1
      by_mice(d, "centre", c("y", "x1", "x2"), "w", m)
    } else by_jomo(d, "centre", c("y", "x1", "x2"), "w", m)
    lapply(tables, function(t) { if (!is.numeric(t$w)) t$w <- as.numeric(t$w == "yes"); analysis(t, y ~ x1 + x2 + w + (1 | centre)) })
  }, error = function(e) { message(conditionMessage(e)); NULL })
  for (i in seq_along(done)) rows[[length(rows) + 1]] <- data.frame(rep = r, draw = i, place = 1:5,
    estimate = done[[i]][, 1], error = done[[i]][, 2])
}
write.csv(do.call(rbind, rows), a[4], row.names = FALSE)
